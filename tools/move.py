"""Move, merge, split and rename Python modules over a whole checkout, by a plan.

    python tools/move.py tools/tests.json [--root DIR]

PLAN.json: {"modules": {old module: new module}, "names": {old module: {old name: new name}},
"splits": {old module: {old name: new module}}, "order": {new module: [old modules in the order of their text]}}.
"files": {old folder: new folder} of what is no module; move these with git mv.
A module that the plan does not name keeps its place. Files below `service`, `worker`, `tests` and `bench` are modules; all other text
is searched for dotted names and paths of moved modules. What cannot be done by itself is printed as a line that begins with `LOOK`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOTS = ("service", "worker", "tests", "bench")


def note(text: str) -> None:
    print("LOOK", text)


# ---------------------------------------------------------------- the checkout


def tracked(root: Path) -> list[Path]:
    out = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted({Path(line) for line in out.stdout.splitlines() if (root / line).is_file()})


def module_of(path: Path) -> str | None:
    if path.suffix != ".py" or path.parts[0] not in ROOTS:
        return None
    parts = list(path.with_suffix("").parts[1:])
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts) or None


@dataclass
class Source:
    path: Path
    name: str | None
    text: str
    tree: ast.Module
    starts: list[int] = field(default_factory=list)
    is_package: bool = False

    def __post_init__(self) -> None:
        self.data = self.text.encode()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def at(self, lineno: int, col: int) -> int:
        return self.starts[lineno - 1] + col

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


def absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = (source.name or "").split(".")
    if not source.is_package:
        parts = parts[:-1]
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, *([node.module] if node.module else [])])


# ---------------------------------------------------------------- scopes


@dataclass
class Bound:
    """What a name stands for: a module, a symbol of a module, or something local (neither)."""

    module: str | None = None
    symbol: str | None = None
    aliased: bool = False
    node: ast.stmt | None = None


LOCAL = Bound()


class Scope:
    def __init__(self, kind: str, parent: Scope | None) -> None:
        self.kind, self.parent = kind, parent
        self.names: dict[str, Bound] = {}
        self.outer: set[str] = set()

    def resolve(self, name: str) -> Bound | None:
        scope: Scope | None = self
        first = True
        while scope is not None:
            if name in scope.outer:
                while scope.parent is not None:
                    scope = scope.parent
                return scope.names.get(name)
            if (scope.kind != "class" or first) and name in scope.names:
                return scope.names[name]
            first = False if scope.kind != "comp" else first
            scope = scope.parent
        return None


class Walk(ast.NodeVisitor):
    """Every use of a module-level name or imported name in a file: `uses` (Name nodes), `chains` (attributes of modules)."""

    def __init__(self, source: Source, modules: set[str]) -> None:
        self.source, self.modules = source, modules
        self.scope = Scope("module", None)
        self.uses: list[tuple[ast.AST, str, Bound]] = []
        self.chains: list[tuple[ast.Attribute, str, str]] = []
        self.bare: list[tuple[ast.Name, Bound]] = []
        self.imports: list[tuple[ast.stmt, str]] = []
        self.all_names: set[str] = set()
        self.fstrings: list[ast.JoinedStr] = []
        self._inside: list[ast.JoinedStr] = []
        self.fchains: dict[int, list[tuple[str, str, str, ast.Attribute]]] = defaultdict(list)
        self.roots: dict[int, ast.stmt | None] = {}
        self.fuses: dict[int, list[tuple[str, Bound]]] = defaultdict(list)
        self.setattrs: list[tuple[ast.Call, Bound, ast.Constant]] = []
        self.strings: list[tuple[ast.Constant, Scope]] = []
        self.collect(source.tree.body, self.scope)
        self.visit_body(source.tree.body)

    # -- collecting what a scope binds
    def collect(self, body: list[ast.stmt], scope: Scope) -> None:
        for node in body:
            self.collect_node(node, scope)

    def bind(self, scope: Scope, name: str, bound: Bound | None = None) -> None:
        self.all_names.add(name)
        if bound is None:
            if scope.kind == "module":
                bound = Bound(module=self.source.name or "", symbol=name)
            else:
                bound = LOCAL
        old = scope.names.get(name)
        if old is not None and old is not LOCAL and old.node is not None and bound is LOCAL:
            return
        scope.names[name] = bound

    def collect_node(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.bind(scope, node.name)
            for child in [*node.decorator_list]:
                self.collect_expr(child, scope)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    self.bind(
                        scope, alias.asname, Bound(module=alias.name, aliased=True, node=node)
                    )
                else:
                    self.bind(
                        scope,
                        alias.name.split(".")[0],
                        Bound(module=alias.name.split(".")[0], node=node),
                    )
            return
        if isinstance(node, ast.ImportFrom):
            base = absolute(self.source, node)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                is_aliased = alias.asname is not None and alias.asname != alias.name
                if full in self.modules and full not in SHADOWED:
                    bound = Bound(module=full, aliased=is_aliased, node=node)
                else:
                    bound = Bound(module=base, symbol=alias.name, aliased=is_aliased, node=node)
                self.bind(scope, alias.asname or alias.name, bound)
            return
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            if isinstance(node, ast.Global):
                scope.outer.update(node.names)
            return
        if isinstance(node, ast.ExceptHandler) and node.name:
            self.bind(scope, node.name)
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            self.bind(scope, node.id)
        if isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            self.bind(scope, node.name)
        if isinstance(node, ast.MatchMapping) and node.rest:
            self.bind(scope, node.rest)
        if isinstance(
            node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
        ):
            for sub in ast.walk(node):
                if isinstance(sub, ast.NamedExpr):
                    self.bind(scope, sub.target.id)
            return
        for child in ast.iter_child_nodes(node):
            self.collect_node(child, scope)

    collect_expr = collect_node

    # -- visiting
    def visit_body(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.visit(node)

    def enter(self, kind: str) -> Scope:
        self.scope = Scope(kind, self.scope)
        return self.scope

    def leave(self) -> None:
        assert self.scope.parent is not None
        self.scope = self.scope.parent

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.record_def(node)
        for deco in node.decorator_list:
            self.visit(deco)
        args = node.args
        for default in [*args.defaults, *[d for d in args.kw_defaults if d]]:
            self.visit(default)
        every = [
            *args.posonlyargs,
            *args.args,
            *args.kwonlyargs,
            *([args.vararg] if args.vararg else []),
            *([args.kwarg] if args.kwarg else []),
        ]
        for arg in every:
            if arg.annotation:
                self.annotation(arg.annotation)
        if node.returns:
            self.annotation(node.returns)
        scope = self.enter("function")
        for arg in every:
            self.bind(scope, arg.arg)
        self.collect(node.body, scope)
        self.visit_body(node.body)
        self.leave()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in [*node.args.defaults, *[d for d in node.args.kw_defaults if d]]:
            self.visit(default)
        scope = self.enter("function")
        for arg in ast.walk(node.args):
            if isinstance(arg, ast.arg):
                self.bind(scope, arg.arg)
        self.visit(node.body)
        self.leave()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.record_def(node)
        for deco in [*node.decorator_list, *node.bases, *[k.value for k in node.keywords]]:
            self.visit(deco)
        scope = self.enter("class")
        self.collect(node.body, scope)
        self.visit_body(node.body)
        self.leave()

    def record_def(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if self.scope.kind == "module":
            self.uses.append(
                (node, node.name, Bound(module=self.source.name or "", symbol=node.name))
            )

    def comp(self, node: ast.AST) -> None:
        scope = self.enter("comp")
        for gen in node.generators:  # type: ignore[attr-defined]
            for sub in ast.walk(gen.target):
                if isinstance(sub, ast.Name):
                    self.bind(scope, sub.id)
        self.generic_visit(node)
        self.leave()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comp

    def visit_Import(self, node: ast.Import) -> None:
        self.imports.append((node, self.scope.kind))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.imports.append((node, self.scope.kind))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self.annotation(node.annotation)
        if node.value:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            for sub in ast.walk(node.value):
                if isinstance(sub, ast.Constant) and isinstance(sub.value, str):
                    self.strings.append((sub, self.scope))
        self.generic_visit(node)

    def annotation(self, node: ast.expr) -> None:
        for sub in ast.walk(node):
            if isinstance(sub, ast.Constant) and isinstance(sub.value, str):
                self.strings.append((sub, self.scope))
        self.visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("cast", "TypeVar", "ForwardRef"):
            for arg in [*node.args, *[k.value for k in node.keywords]]:
                if isinstance(arg, ast.Constant) and isinstance(arg.value, str):
                    self.strings.append((arg, self.scope))
        is_patch = (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in ("setattr", "object", "delattr")
        ) or (
            isinstance(node.func, ast.Name)
            and node.func.id in ("setattr", "getattr", "hasattr", "delattr")
        )
        if (
            is_patch
            and len(node.args) >= 2
            and isinstance(node.args[1], ast.Constant)
            and isinstance(node.args[1].value, str)
        ):
            first = node.args[0]
            module = None
            if isinstance(first, ast.Name):
                bound = self.scope.resolve(first.id)
                if bound and bound.module and bound.symbol is None:
                    module = bound.module
            elif isinstance(first, ast.Attribute):
                module = self.dotted(first)
            if module in self.modules:
                self.setattrs.append((node, Bound(module=module), node.args[1]))
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        if self._inside:
            self.generic_visit(node)
            return
        self._inside.append(node)
        self.fstrings.append(node)
        self.generic_visit(node)
        self._inside.pop()

    def root(self, node: ast.expr) -> ast.stmt | None:
        """The import statement within a function that binds the first word of a chain; None where it stands at the top."""
        while isinstance(node, ast.Attribute):
            node = node.value
        bound = self.scope.resolve(node.id) if isinstance(node, ast.Name) else None
        return bound.node if bound and bound.node is not None and bound.node.col_offset else None

    def dotted(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            bound = self.scope.resolve(node.id)
            return bound.module if bound and bound.module and bound.symbol is None else None
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            if base is not None and f"{base}.{node.attr}" in self.modules:
                return f"{base}.{node.attr}"
        return None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        base = self.dotted(node.value)
        if base is not None and base in self.modules and f"{base}.{node.attr}" not in self.modules:
            if self._inside and base.split(".")[0] in OWN:
                self.roots[id(node)] = self.root(node)
                self.fchains[id(self._inside[-1])].append(
                    (ast.unparse(node), base, node.attr, node)
                )
            elif not self._inside:
                self.roots[id(node)] = self.root(node)
                self.chains.append((node, base, node.attr))
            return
        if base is not None and f"{base}.{node.attr}" in self.modules:
            # The whole module as a value; its longest chain was looked at by the parent.
            bound = Bound(module=f"{base}.{node.attr}")
            self.roots[id(node)] = self.root(node)
            self.bare.append((node, bound))  # type: ignore[arg-type]
            return
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        bound = self.scope.resolve(node.id)
        if bound is None or bound is LOCAL or bound.module is None:
            return
        if bound.symbol is None:
            if bound.module in self.modules:
                self.roots[id(node)] = self.root(node)
                self.bare.append((node, bound))
            return
        if self._inside:
            self.fuses[id(self._inside[-1])].append((node.id, bound))
        else:
            self.uses.append((node, node.id, bound))

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            bound = Bound(module=self.source.name or "", symbol=name)
            self.uses.append((node, name, bound))


OWN: set[str] = set()
SHADOWED: set[str] = set()
"""Modules whose package hands on a symbol of the same name."""


# ---------------------------------------------------------------- the plan


class Plan:
    def __init__(self, raw: dict[str, dict], modules: set[str]) -> None:
        self.modules: dict[str, str] = raw.get("modules", {})
        self.names: dict[str, dict[str, str]] = raw.get("names", {})
        self.splits: dict[str, dict[str, str]] = raw.get("splits", {})
        self.order: dict[str, list[str]] = raw.get("order", {})
        for old in [*self.modules, *self.names, *self.splits]:
            if old not in modules:
                sys.exit(f"the plan names {old}, which does not exist")

    def prepare(self, sources: dict[str, Source], packages: set[str]) -> None:
        moved = [m for m in {*self.modules, *self.splits, *self.names} if "." in m]
        alternatives = "|".join(sorted(map(re.escape, moved), key=len, reverse=True))
        self._dotted = re.compile(rf"(?<![\w./\0-])({alternatives})(?![\w])((?:[.:][A-Za-z_]\w*)?)")
        self._sources = sources
        self._paths = {}
        for old in moved:
            if self.home(old) == old:
                continue
            old_path = sources[old].path
            new_base = Path(old_path.parts[0], *self.home(old).split("."))
            new_path = (
                new_base / "__init__.py"
                if self.home(old) in packages
                else new_base.with_suffix(".py")
            )
            self._paths[str(old_path)] = str(new_path)
            self._paths["/".join(old_path.parts[1:])] = "/".join(new_path.parts[1:])
        self._by_path = re.compile(
            r"(?<![\w/-])("
            + "|".join(sorted(map(re.escape, self._paths), key=len, reverse=True))
            + r")\b"
        )

    def program(self, text: str) -> str:
        """A text that holds Python, such as a script in a string, with its imports and the names that they bind."""
        renames: dict[str, str] = {}
        members: dict[tuple[str, str], str] = {}

        def swap(match: re.Match[str]) -> str:
            indent, base, names = match[1], match[2], match[3]
            lines: dict[str, list[str]] = {}
            for item in names.split(","):
                name, _, alias = (part.strip() for part in item.partition(" as "))
                full = f"{base}.{name}"
                if full in self._sources and full not in SHADOWED:
                    package, _, leaf = self.home(full).rpartition(".")
                    lines.setdefault(package, []).append(f"{leaf} as {alias}" if alias else leaf)
                    if not alias and leaf != name:
                        renames[name] = leaf
                    for old in all_names(self._sources[full]):
                        new_module, new_name = self.place(full, old)
                        if new_name != old:
                            members[alias or leaf, old] = new_name
                        if new_module != self.home(full):
                            note(
                                f"a program in a string: {full}.{old} is in {new_module}"
                            ) if f"{name}.{old}" in text else None
                else:
                    new_module, new_name = self.place(base, name)
                    lines.setdefault(new_module, []).append(
                        f"{new_name} as {alias}" if alias else new_name
                    )
                    if not alias and new_name != name:
                        renames[name] = new_name
            return "\n".join(
                f"{indent}from \0{m} import {', '.join(ns)}" for m, ns in lines.items()
            )

        roots = "|".join(sorted({name.split(".")[0] for name in self._sources}))
        text = re.sub(rf"(?m)^([ \t]*)from ((?:{roots})(?:\.\w+)*) import ([\w, ]+)$", swap, text)
        for old, new in renames.items():
            text = re.sub(rf"(?<![\w.'\"]){old}\b(?!\s*=[^=])", new, text)
        for (module, old), new in members.items():
            text = re.sub(rf"(?<![\w.]){module}\.{old}\b", f"{module}.{new}", text)
        return text

    def mention(self, text: str) -> str:
        """A text with the dotted names and paths of modules as they are after the move."""
        text = self.program(text)

        def swap(match: re.Match[str]) -> str:
            module, rest = match[1], match[2]
            if rest and rest[1:] in all_names(self._sources.get(module)):
                new_module, new_name = self.place(module, rest[1:])
                return f"{new_module}{rest[0]}{new_name}"
            if rest and rest[0] == "." and f"{module}{rest}" in self._sources:
                return match[0]
            return self.home(module) + rest

        return self._by_path.sub(lambda m: self._paths[m[1]], self._dotted.sub(swap, text)).replace(
            "\0", ""
        )

    def touched(self, module: str) -> bool:
        return module in self.modules or module in self.names or module in self.splits

    exports: dict[str, dict[str, Bound]] = {}

    def place(self, module: str, name: str) -> tuple[str, str]:
        bound = self.exports.get(module, {}).get(name)
        if bound is not None and bound.node is not None and bound.symbol and bound.module != module:
            # Handed on by a module that imports it: the module hands it on under its new name.
            return self.home(module), self.place(bound.module or "", bound.symbol)[
                1
            ] if not bound.aliased else name
        new_name = self.names.get(module, {}).get(name, name)
        return self.splits.get(module, {}).get(name, self.modules.get(module, module)), new_name

    def home(self, module: str) -> str:
        return self.modules.get(module, module)


# ---------------------------------------------------------------- rewriting one file


@dataclass
class Edits:
    changes: list[tuple[int, int, str]] = field(default_factory=list)

    def put(self, start: int, end: int, text: str) -> None:
        self.changes.append((start, end, text))

    def apply(self, data: bytes, start: int, end: int) -> str:
        out, at = [], start
        for a, b, text in sorted(set(self.changes)):
            if a < start or b > end:
                continue
            if a < at:
                raise AssertionError(("overlap", data[a:b], text))
            out.append(data[at:a])
            out.append(text.encode())
            at = b
        out.append(data[at:end])
        return b"".join(out).decode()


@dataclass
class Chunk:
    start: int
    end: int
    target: str
    names: list[str]
    needs: set[tuple[str, str, str]] = field(default_factory=set)


class Rewriter:
    def __init__(self, source: Source, plan: Plan, modules: set[str]) -> None:
        self.source, self.plan, self.modules = source, plan, modules
        self.walk = Walk(source, modules)
        self.edits = Edits()
        self.kept: list[str] = []
        self.local_extra: dict[int, list[str]] = defaultdict(list)
        self.extra: dict[str, set[str]] = defaultdict(set)
        """New module of the text -> import lines that it needs."""

    def chunks(self) -> tuple[str | None, list[ast.stmt], list[Chunk]]:
        """Docstring, top-level import statements, and the other statements with comments before and strings after them."""
        source, body = self.source, self.source.tree.body
        doc, at, imports, out = None, 0, [], []
        index = 0
        if (
            body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        ):
            doc = source.data[slice(*source.span(body[0]))].decode()
            at = source.starts[body[0].end_lineno or 1]
            index = 1
        name = source.name or ""
        for node in body[index:]:
            end = source.starts[node.end_lineno or node.lineno]
            is_import = isinstance(node, (ast.Import, ast.ImportFrom)) or is_import_block(node)
            if is_import:
                lead = source.data[at : source.at(node.lineno, 0)].decode()
                self.kept += [line for line in lead.splitlines() if line.startswith("# ruff:")]
                if lead.strip() and not self.kept:
                    note(
                        f"{source.path}:{node.lineno} comment before an import is dropped: {lead.strip()[:80]!r}"
                    ) if self.plan.touched(name) else None
                imports.append(node)
                at = end
                continue
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
                and out
            ):
                out[-1].end = end
                at = end
                continue
            names = bound_names(node)
            targets = {self.plan.place(name, n)[0] for n in names} or {self.plan.home(name)}
            if len(targets) > 1:
                note(
                    f"{source.path}:{node.lineno} one statement binds names of several places: {names}"
                )
            out.append(Chunk(at, end, sorted(targets)[0], names))
            at = end
        if source.data[at:].strip() and out:
            out[-1].end = len(source.data)
        return doc, imports, out

    def refer(self, here: str, module: str, name: str) -> tuple[str, str]:
        return self.plan.place(module, name)

    def local_name(self, here: str, leaf: str) -> str:
        return leaf

    def rewrite(self, start: int, end: int, here: str) -> str:
        """The text between two offsets as it reads in the module `here`; top-level imports are not in it."""
        source, plan, edits = self.source, self.plan, Edits()
        inside = lambda node: start <= source.at(node.lineno, node.col_offset) < end  # noqa: E731
        own = source.name or ""
        for node, name, bound in self.walk.uses:
            if not inside(node):
                continue
            new_module, new_name = plan.place(bound.module or "", bound.symbol or "")
            if bound.aliased and new_module != here:
                continue
            if bound.module == own and bound.node is None and new_module != here:
                self.extra[here].add(f"from {new_module} import {new_name}")
            if new_name == name:
                continue
            if (
                not bound.aliased
                and new_name in self.walk.all_names
                and new_module not in (plan.home(own),)
            ):
                self.clash(node, name, new_name)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Global)):
                first = source.at(node.lineno, 0)
                match = re.compile(rb"\b" + name.encode() + rb"\b").search(source.data, first)
                assert match
                edits.put(match.start(), match.end(), new_name)
                continue
            a, b = source.span(node)
            if source.data[a:b] != name.encode():
                note(f"{source.path}:{node.lineno} cannot find {name}")
                continue
            edits.put(a, b, new_name)
        for node, base, attr in self.walk.chains:
            if not inside(node) or base.split(".")[0] not in OWN:
                continue
            new_module, new_name = plan.place(base, attr)
            a, b = source.span(node)
            if not plan.touched(base) and not (plan.home(own) != own and False):
                continue
            if new_module == here:
                edits.put(a, b, new_name)
                continue
            edits.put(a, b, self.member_of(here, new_module, new_name, base, node))
        for node, bound in self.walk.bare:
            if (
                not inside(node)
                or not bound.module
                or bound.module.split(".")[0] not in OWN
                or not plan.touched(bound.module)
            ):
                continue
            patched = next((c for call, _, c in self.walk.setattrs if call.args[0] is node), None)
            new_module = plan.home(bound.module)
            if patched is not None:
                new_module, new_name = plan.place(bound.module, patched.value)
                if new_name != patched.value:
                    a, b = source.span(patched)
                    edits.put(a, b, f'"{new_name}"')
            elif bound.module in plan.splits:
                note(
                    f"{source.path}:{node.lineno} a module that is split is used as a value: {bound.module}"
                )
            a, b = source.span(node)
            if new_module == here:
                note(f"{source.path}:{node.lineno} a module uses itself as a value: {bound.module}")
                continue
            if bound.aliased and isinstance(node, ast.Name):
                continue
            edits.put(a, b, self.module_import(here, new_module, bound.module, node))
        for joined in self.walk.fstrings:
            if not inside(joined):
                continue
            renames = {}
            for name, bound in self.walk.fuses.get(id(joined), []):
                new_module, new_name = plan.place(bound.module or "", bound.symbol or "")
                if bound.module == own and bound.node is None and new_module != here:
                    self.extra[here].add(f"from {new_module} import {new_name}")
                if bound.aliased and new_module != here:
                    continue
                if new_name != name:
                    renames[name] = new_name
            swaps = {}
            for old_text, base, attr, node in self.walk.fchains.get(id(joined), []):
                if not plan.touched(base):
                    continue
                new_module, new_name = plan.place(base, attr)
                swaps[old_text] = (
                    new_name
                    if new_module == here
                    else self.member_of(here, new_module, new_name, base, node)
                )
            if renames or swaps:
                a, b = source.span(joined)
                text = source.data[a:b].decode()
                for old_text, new_text in swaps.items():
                    text = in_braces(
                        text,
                        lambda part, o=old_text, n=new_text: re.sub(
                            r"(?<![\w.])" + re.escape(o) + r"\b", n, part
                        ),
                    )
            if swaps and not renames:
                edits.put(a, b, text)
            if renames:
                pattern = re.compile(
                    r"(?<![\w.\"'])(" + "|".join(map(re.escape, renames)) + r")\b(?!\s*=[^=])"
                )
                changed = in_braces(text, lambda part: pattern.sub(lambda m: renames[m[1]], part))
                edits.put(a, b, changed)
        for constant, scope in self.walk.strings:
            if not inside(constant) or any(
                a <= source.span(constant)[0] < b for a, b in map(source.span, self.walk.fstrings)
            ):
                continue
            text = constant.value

            def swap(match: re.Match[str], scope: Scope = scope) -> str:
                bound = scope.resolve(match[0])
                if bound is None or not bound.module or not bound.symbol or bound.aliased:
                    return match[0]
                new_module, new_name = plan.place(bound.module, bound.symbol)
                if bound.module == own and bound.node is None and new_module != here:
                    self.extra[here].add(f"from {new_module} import {new_name}")
                return new_name

            changed = re.sub(r"(?<![\w.])[A-Za-z_]\w*", swap, text)
            if changed != text:
                a, b = source.span(constant)
                quote = source.data[a : a + 1].decode()
                edits.put(a, b, f"{quote}{changed}{quote}")
        for node, kind in self.walk.imports:
            if inside(node) and (kind != "module" or self.in_place):
                lines = list(
                    dict.fromkeys(
                        [*self.import_lines(node, here), *self.local_extra.get(id(node), ())]
                    )
                )
                old = source.data[slice(*source.span(node))].decode()
                tail = source.data[source.span(node)[1] :].split(b"\n", 1)[0].decode()
                if "noqa" in tail:
                    lines = [*(line + tail for line in lines[:-1]), *lines[-1:]]
                new = ("\n" + " " * node.col_offset).join(lines) if lines else "pass"
                if lines != [" ".join(old.split())] and self.changed_import(node, here):
                    edits.put(*source.span(node), new)
        taken = [(a, b) for a, b, _ in edits.changes]
        for a, b in self.texts():
            if start <= a < end:
                old = source.data[a:b].decode()
                new = self.plan.mention(old)
                if new != old:
                    if any(x < b and a < y for x, y in taken):
                        note(
                            f"{source.path}: a string that is changed otherwise names a module: {old[:80]}"
                        )
                    else:
                        edits.put(a, b, new)
        text = edits.apply(source.data, start, end)
        return text

    def texts(self) -> list[tuple[int, int]]:
        """Where strings and comments are."""
        if self._texts is None:
            import io, tokenize

            self._texts = []
            lines = self.source.text.splitlines(keepends=True)
            for token in tokenize.generate_tokens(io.StringIO(self.source.text).readline):
                if token.type in (tokenize.STRING, tokenize.COMMENT):
                    a = self.source.starts[token.start[0] - 1] + len(
                        lines[token.start[0] - 1][: token.start[1]].encode()
                    )
                    b = self.source.starts[token.end[0] - 1] + len(
                        lines[token.end[0] - 1][: token.end[1]].encode()
                    )
                    self._texts.append((a, b))
        return self._texts

    _texts: list[tuple[int, int]] | None = None

    in_place = False

    def clash(self, node: ast.AST, name: str, new_name: str) -> None:
        note(
            f"{self.source.path}:{node.lineno} {name} -> {new_name}: the file has that name already"
        )  # type: ignore[attr-defined]

    def member_of(self, here: str, new_module: str, new_name: str, old: str, node: ast.AST) -> str:
        """How to write a symbol of another module: by its module, or by itself where the module's name is taken."""
        leaf = new_module.rpartition(".")[2]
        old_leaf = old.rpartition(".")[2]
        if leaf != old_leaf and leaf in self.walk.all_names and new_name not in self.walk.all_names:
            self.need(here, node, f"from {new_module} import {new_name}")
            return new_name
        return f"{self.module_import(here, new_module, old, node)}.{new_name}"

    def module_import(self, here: str, new_module: str, old: str, node: ast.AST) -> str:
        """Import a module into `here` by its last word; the local name for it."""
        package, _, leaf = new_module.rpartition(".")
        local = leaf
        old_leaf = old.rpartition(".")[2]
        if local != old_leaf and local in self.walk.all_names:
            local = f"{package.rpartition('.')[2]}_{leaf}"
            note(f"{self.source.path}:{node.lineno} module {leaf} imported as {local}")  # type: ignore[attr-defined]
        suffix = f" as {local}" if local != leaf else ""
        self.need(
            here,
            node,
            f"from {package} import {leaf}{suffix}" if package else f"import {leaf}{suffix}",
        )
        return local

    def need(self, here: str, node: ast.AST, line: str) -> None:
        """An import for a use of a module: in the function that imported it, or at the top."""
        within = self.walk.roots.get(id(node))
        if within is None:
            self.extra[here].add(line)
        else:
            self.local_extra[id(within)].append(line)

    def changed_import(self, node: ast.stmt, here: str) -> bool:
        if isinstance(node, ast.Import):
            return any(self.plan.touched(a.name) for a in node.names)
        assert isinstance(node, ast.ImportFrom)
        base = absolute(self.source, node)
        moved_here = self.plan.home(self.source.name or "") != (self.source.name or "")
        return bool(
            self.plan.touched(base)
            or any(self.plan.touched(f"{base}.{a.name}") for a in node.names)
            or (node.level and moved_here)
            or any(self.plan.place(base, a.name) != (base, a.name) for a in node.names)
            or (here and any(self.plan.place(base, a.name)[0] == here for a in node.names))
        )

    def import_lines(self, node: ast.stmt, here: str) -> list[str]:
        plan, out = self.plan, []
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not plan.touched(alias.name):
                    out.append(
                        f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
                    )
                elif alias.asname:
                    package, _, leaf = plan.home(alias.name).rpartition(".")
                    suffix = f" as {alias.asname}" if alias.asname != leaf else ""
                    out.append(
                        f"from {package} import {leaf}{suffix}"
                        if package
                        else f"import {leaf}{suffix}"
                    )
                # An unaliased import of a moved module: its uses import what they need.
            return out
        assert isinstance(node, ast.ImportFrom)
        base = absolute(self.source, node)
        if base == "__future__":
            return ["from __future__ import annotations"]
        for alias in node.names:
            full = f"{base}.{alias.name}"
            if alias.name == "*":
                out.append(f"from {plan.home(base)} import *")
            elif full in self.modules and full not in SHADOWED:
                if not plan.touched(full):
                    out.append(
                        f"from {base} import {alias.name}"
                        + (f" as {alias.asname}" if alias.asname else "")
                    )
                elif alias.asname:
                    package, _, leaf = plan.home(full).rpartition(".")
                    suffix = f" as {alias.asname}" if alias.asname != leaf else ""
                    out.append(
                        f"from {package} import {leaf}{suffix}"
                        if package
                        else f"import {leaf}{suffix}"
                    )
            else:
                new_module, new_name = plan.place(base, alias.name)
                if new_module == here:
                    continue
                suffix = (
                    f" as {alias.asname}"
                    if alias.asname and (alias.asname != new_name or alias.asname == alias.name)
                    else ""
                )
                line = f"from {new_module} import {new_name}{suffix}"
                same = next(
                    (
                        i
                        for i, old in enumerate(out)
                        if old.startswith(f"from {new_module} import ")
                    ),
                    None,
                )
                if same is None:
                    out.append(line)
                else:
                    out[same] += f", {new_name}{suffix}"
        return out


def is_import_block(node: ast.stmt) -> bool:
    """`if TYPE_CHECKING:` with nothing but imports."""
    return (
        isinstance(node, ast.If)
        and (
            (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
            or (isinstance(node.test, ast.Attribute) and node.test.attr == "TYPE_CHECKING")
        )
        and all(isinstance(child, (ast.Import, ast.ImportFrom)) for child in node.body)
        and not node.orelse
    )


def bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    out = []
    for sub in ast.walk(node):
        if isinstance(sub, ast.Name) and isinstance(sub.ctx, ast.Store):
            out.append(sub.id)
        if isinstance(sub, (ast.FunctionDef, ast.ClassDef)):
            out.append(sub.name)
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [
            sub.id
            for target in targets
            for sub in ast.walk(target)
            if isinstance(sub, ast.Name) and isinstance(sub.ctx, ast.Store)
        ]
    return out


def in_braces(text: str, change) -> str:  # type: ignore[no-untyped-def]
    out, depth, part = [], 0, []
    index = 0
    while index < len(text):
        two = text[index : index + 2]
        if depth == 0 and two in ("{{", "}}"):
            out.append(two)
            index += 2
            continue
        char = text[index]
        if char == "{":
            if depth == 0:
                out.append("{")
                part = []
            else:
                part.append(char)
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                out.append(change("".join(part)) + "}")
            else:
                part.append(char)
        elif depth:
            part.append(char)
        else:
            out.append(char)
        index += 1
    return "".join(out)


# ---------------------------------------------------------------- everything


def path_of(module: str, sources: dict[str, Source], old_root: str, is_package: bool) -> Path:
    base = Path(old_root, *module.split("."))
    return base / "__init__.py" if is_package else base.with_suffix(".py")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--root", type=Path, default=Path())
    options = parser.parse_args()
    root = options.root.resolve()

    files = tracked(root)
    sources: dict[str, Source] = {}
    others: list[Source] = []
    for path in files:
        if path.suffix != ".py":
            continue
        text = (root / path).read_text(encoding="utf-8")
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            note(f"{path} is not Python: {error}")
            continue
        name = module_of(path)
        source = Source(path, name, text, tree, is_package=path.name == "__init__.py")
        if name is None:
            others.append(source)
        elif name in sources:
            note(f"two modules are called {name}: {path}, {sources[name].path}")
            others.append(source)
        else:
            sources[name] = source
    modules = set(sources)
    for name in list(modules):
        parts = name.split(".")
        for end in range(1, len(parts)):
            modules.add(".".join(parts[:end]))
    OWN.update(name.split(".")[0] for name in modules)
    for name, source in sources.items():
        if source.is_package:
            for node in source.tree.body:
                if isinstance(node, ast.ImportFrom):
                    base = absolute(source, node)
                    SHADOWED.update(
                        f"{name}.{a.asname or a.name}"
                        for a in node.names
                        if f"{base}.{a.name}" not in modules
                    )
    SHADOWED.intersection_update(modules)
    plan = Plan(json.loads(options.plan.read_text()), modules)

    targets: dict[str, list[str]] = defaultdict(list)
    for name, source in sources.items():
        if plan.touched(name):
            for target in [plan.home(name), *plan.splits.get(name, {}).values()]:
                if name not in targets[target]:
                    targets[target].append(name)
    for name in list(sources):
        if (
            not plan.touched(name)
            and not sources[name].is_package
            and any(t.startswith(name + ".") for t in targets)
        ):
            targets[name].append(name)
    for target in targets:
        if target in sources and not plan.touched(target) and target not in targets[target]:
            targets[target].insert(0, target)  # A module that others are merged into.

    rewriters = {name: Rewriter(source, plan, modules) for name, source in sources.items()}
    plan.exports = {name: r.walk.scope.names for name, r in rewriters.items()}
    final = {plan.home(n) for n in sources} | {
        m for names in plan.splits.values() for m in names.values()
    }
    packages = {
        t
        for t in targets
        if any(o.startswith(t + ".") for o in targets)
        or any(n in sources and sources[n].is_package and plan.home(n) == t for n in targets[t])
    }
    plan.prepare(sources, packages)
    written: dict[Path, str] = {}
    gone: set[Path] = set()
    assembled = {name for names in targets.values() for name in names}

    for name, source in sources.items():
        if name not in assembled:
            rewrite_in_place(rewriters[name], written, root)
    for source in others:
        rewrite_in_place(Rewriter(source, plan, modules), written, root)

    for target, names in targets.items():
        names = arrange(names, target, plan, sources)
        docs, head, body, seen = [], [], [], {}
        comments: list[str] = []
        for name in names:
            rewriter = rewriters[name]
            doc, imports, chunks = rewriter.chunks()
            mine = [c for c in chunks if c.target == target]
            is_home = plan.home(name) == target
            if not mine and not is_home:
                continue
            if doc and (is_home or len(names) == 1):
                docs.append(plan.mention(doc))
            for line in rewriter.kept:
                if line not in docs[1:]:
                    comments.append(line)
            for node in imports:
                if isinstance(node, ast.If):
                    lines = [
                        line for sub in node.body for line in rewriter.import_lines(sub, target)
                    ]
                    if lines:
                        head.append(
                            "if TYPE_CHECKING:\n" + "\n".join("    " + line for line in lines)
                        )
                else:
                    head.extend(rewriter.import_lines(node, target))
            for chunk in mine:
                for bound in chunk.names:
                    new = plan.place(name, bound)[1]
                    if new in seen and seen[new] != name:
                        note(f"{target}: {new} comes from {seen[new]} and from {name}")
                    seen.setdefault(new, name)
                body.append(rewriter.rewrite(chunk.start, chunk.end, target))
            head.extend(sorted(rewriter.extra[target]))
        text = compose(docs, list(dict.fromkeys(comments)), head, body)
        old_root = sources[names[0]].path.parts[0]
        if target.split(".")[0] in sources and False:
            pass
        is_package = any(m.startswith(target + ".") for m in final)
        path = path_of(target, sources, old_root, is_package)
        written[path] = text
    for name in assembled:
        if sources[name].path not in written:
            gone.add(sources[name].path)

    for path in gone:
        (root / path).unlink()
    for path, text in written.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    for path in written:
        folder = path.parent
        while len(folder.parts) > 1 and folder.parts[0] in ("service", "worker"):
            init = root / folder / "__init__.py"
            if not init.exists():
                init.write_text("", encoding="utf-8")
                print("package", folder)
            folder = folder.parent
    mentions(root, plan, sources)
    print(f"{len(gone)} files gone, {len(written)} written")


def arrange(names: list[str], target: str, plan: Plan, sources: dict[str, Source]) -> list[str]:
    """Modules that become one, those that others import first."""
    wanted = plan.order.get(target, [])
    names = [n for n in wanted if n in names] + sorted(n for n in names if n not in wanted)
    needs = {}
    for name in names:
        needs[name] = set()
        for node in ast.walk(sources[name].tree):
            if isinstance(node, ast.ImportFrom):
                base = absolute(sources[name], node)
                needs[name] |= {
                    n
                    for n in names
                    if n != name and (n == base or any(n == f"{base}.{a.name}" for a in node.names))
                }
    out: list[str] = []
    while len(out) < len(names):
        free = [n for n in names if n not in out and needs[n] <= set(out)]
        if not free:
            note(f"{target}: {[n for n in names if n not in out]} import each other")
            free = [next(n for n in names if n not in out)]
        out.append(free[0])
    return out


def compose(docs: list[str], comments: list[str], head: list[str], body: list[str]) -> str:
    parts = []
    if docs:
        doc = docs[0]
        for more in docs[1:]:
            inner = re.sub(r'^[rR]?"""|"""$', "", more).strip()
            doc = re.sub(r'\s*"""$', "", doc) + "\n\n" + inner + '\n"""'
        parts.append(doc + "\n\n")
    if comments:
        parts.append("\n".join(comments) + "\n\n")
    lines = list(dict.fromkeys(head))
    if "from __future__ import annotations" in lines:
        lines.remove("from __future__ import annotations")
        lines.insert(0, "from __future__ import annotations")
    checking = [line for line in lines if line.startswith("if TYPE_CHECKING")]
    plain = [line for line in lines if not line.startswith("if TYPE_CHECKING")]
    if checking:
        inner = list(
            dict.fromkeys(
                line
                for block in checking
                for line in block.split("\n")[1:]
                if line.strip() not in plain
            )
        )
        plain += ["", "if TYPE_CHECKING:", *inner] if inner else []
    parts.append("\n".join(plain) + "\n\n")
    parts.append("".join(part if part.endswith("\n") else part + "\n" for part in body))
    return "".join(parts).rstrip() + "\n"


def rewrite_in_place(rewriter: Rewriter, written: dict[Path, str], root: Path) -> None:
    source = rewriter.source
    rewriter.in_place = True
    here = source.name or ""
    text = rewriter.rewrite(0, len(source.data), here)
    extra = sorted(rewriter.extra.get(here, ()))
    extra = [line for line in extra if line not in text.splitlines()]
    if extra:
        # After the last import at the top, where the sorter finds them.
        tree = ast.parse(text)
        last = 0
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                last = node.end_lineno or last
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and not last:
                last = node.end_lineno or last
            elif last:
                break
        lines = text.splitlines(keepends=True)
        text = "".join(lines[:last]) + "\n".join(extra) + "\n" + "".join(lines[last:])
    if text != source.text:
        written[source.path] = text


def mentions(root: Path, plan: Plan, sources: dict[str, Source]) -> None:
    """Dotted names and paths of moved modules in text that is not Python: documentation, settings."""
    for path in tracked(root):
        if (
            path.suffix in (".py", ".png", ".jpg", ".lock", ".woff2")
            or path.parts[0] == "dashboard"
            or path.name == "CHANGELOG.md"
        ):
            continue
        try:
            text = (root / path).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        changed = plan.mention(text)
        if changed != text:
            (root / path).write_text(changed, encoding="utf-8")


_names: dict[str, set[str]] = {}


def all_names(source: Source | None) -> set[str]:
    if source is None:
        return set()
    key = str(source.path)
    if key not in _names:
        _names[key] = {name for node in source.tree.body for name in bound_names(node)}
    return _names[key]


if __name__ == "__main__":
    main()
