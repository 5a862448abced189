"""Rename members by type, through pyright's language server (`npm install pyright`, on the PATH).

    python tools/rename.py PLAN [--root DIR]

PLAN: lines `path.py:Class.member newname`, `path.py:name newname` or `path.py:function(parameter) newname`. Overrides and protocols that are not declared as such need lines of their own.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Server:
    def __init__(self, root: Path):
        self.p = subprocess.Popen(
            ["pyright-langserver", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=root,
        )
        self.n = 0

    def send(self, message):
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.p.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self.p.stdin.flush()

    def read(self):
        length = 0
        while line := self.p.stdout.readline().strip():
            if line.lower().startswith(b"content-length"):
                length = int(line.split(b":")[1])
        return json.loads(self.p.stdout.read(length))

    def ask(self, method, params):
        self.n += 1
        mine = self.n
        self.send({"id": mine, "method": method, "params": params})
        while True:
            m = self.read()
            if m.get("id") == mine and "method" not in m:
                if "error" in m:
                    print("ERROR", method, m["error"])
                    return None
                return m.get("result")
            if "id" in m and "method" in m:
                r = (
                    [{} for _ in m["params"]["items"]]
                    if m["method"] == "workspace/configuration"
                    else None
                )
                self.send({"id": m["id"], "result": r})


def position(path: Path, target: str):
    tree = ast.parse(path.read_text())
    target, _, parameter = target.rstrip(")").partition("(")
    parts = target.split(".")
    body = tree.body
    node = None
    for i, part in enumerate(parts):
        for n in body:
            name = getattr(n, "name", None)
            if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name):
                name = n.target.id
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name):
                name = n.targets[0].id
            if name == part:
                node = n
                body = getattr(n, "body", [])
                break
        else:
            # an attribute set in __init__
            for n in ast.walk(node or tree):
                if isinstance(n, ast.Attribute) and n.attr == part and isinstance(n.ctx, ast.Store):
                    line = path.read_text().splitlines()[n.end_lineno - 1]
                    return n.end_lineno - 1, n.end_col_offset - len(part)
            return None
    if parameter:
        a = node.args
        for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg):
            if arg and arg.arg == parameter:
                return arg.lineno - 1, arg.col_offset
        return None
    line = path.read_text().splitlines()[node.lineno - 1]
    col = line.index(
        parts[-1],
        node.col_offset + (4 if hasattr(node, "name") else 0)
        if hasattr(node, "name")
        else node.col_offset,
    )
    return node.lineno - 1, col


def main():
    a = argparse.ArgumentParser()
    a.add_argument("plan")
    a.add_argument("--root", default=".")
    o = a.parse_args()
    root = Path(o.root).resolve()
    (root / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "include": ["service", "worker", "tests", "bench", "examples", "migrations"],
                "exclude": ["**/node_modules"],
                "extraPaths": ["service", "worker", "tests", "bench"],
                "venvPath": ".",
                "venv": ".venv",
                "typeCheckingMode": "off",
            }
        )
    )
    s = Server(root)
    s.ask(
        "initialize",
        {
            "processId": None,
            "rootUri": root.as_uri(),
            "workspaceFolders": [{"uri": root.as_uri(), "name": "r"}],
            "capabilities": {
                "workspace": {
                    "configuration": True,
                    "workspaceEdit": {"documentChanges": True},
                    "workspaceFolders": True,
                }
            },
        },
    )
    s.send({"method": "initialized", "params": {}})
    edits, opened = {}, set()
    rows = [r for r in Path(o.plan).read_text().splitlines() if r.strip() and not r.startswith("#")]
    # Open every file first: what is not known yet is not renamed.
    for path in sorted(
        [
            *root.glob("service/**/*.py"),
            *root.glob("worker/**/*.py"),
            *root.glob("tests/**/*.py"),
            *root.glob("bench/**/*.py"),
        ]
    ):
        opened.add(path)
        s.send(
            {
                "method": "textDocument/didOpen",
                "params": {
                    "textDocument": {
                        "uri": path.as_uri(),
                        "languageId": "python",
                        "version": 1,
                        "text": path.read_text(),
                    }
                },
            }
        )
    for row in Path(o.plan).read_text().splitlines():
        row = row.split("#")[0].strip()
        if not row:
            continue
        where, new = row.split()
        file, target = where.split(":")
        path = root / file
        pos = position(path, target) if path.exists() else None
        if pos is None:
            print("NOT FOUND", row)
            continue
        if path not in opened:
            opened.add(path)
            s.send(
                {
                    "method": "textDocument/didOpen",
                    "params": {
                        "textDocument": {
                            "uri": path.as_uri(),
                            "languageId": "python",
                            "version": 1,
                            "text": path.read_text(),
                        }
                    },
                }
            )
        start = time.monotonic()
        r = s.ask(
            "textDocument/rename",
            {
                "textDocument": {"uri": path.as_uri()},
                "position": {"line": pos[0], "character": pos[1]},
                "newName": new,
            },
        )
        count = 0
        for d in (r or {}).get("documentChanges", []):
            for e in d.get("edits", []):
                b, f = e["range"]["start"], e["range"]["end"]
                place = (b["line"], b["character"], f["line"], f["character"])
                mine = edits.setdefault(d["textDocument"]["uri"], {})
                if mine.get(place, e["newText"]) != e["newText"]:
                    print("CLASH", d["textDocument"]["uri"], place, mine[place], e["newText"])
                mine[place] = e["newText"]
                count += 1
        for uri, es in (r or {}).get("changes", {}).items():
            for e in es:
                b, f = e["range"]["start"], e["range"]["end"]
                edits.setdefault(uri, {})[
                    (b["line"], b["character"], f["line"], f["character"])
                ] = e["newText"]
                count += 1
        print(f"{row}: {count} places, {time.monotonic() - start:.0f} s", flush=True)
    for uri, es in edits.items():
        path = Path(unquote(urlsplit(uri).path))
        if ".venv" in path.parts:
            continue
        lines = path.read_text().splitlines(keepends=True)
        for (l, c, l2, c2), text in sorted(es.items(), reverse=True):
            assert l == l2
            lines[l] = lines[l][:c] + text + lines[l][c2:]
        path.write_text("".join(lines))
    s.p.terminate()
    (root / "pyrightconfig.json").unlink(missing_ok=True)


main()
