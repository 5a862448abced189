"""Packing of a folder for upload: sent, ignored and refused files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest
from holdfast.cli.code_upload import code_of
from holdfast.client import Client
from holdfast.code_upload.packing import ChangedFile, ignored_by, is_included, pack
from holdfast.code_upload.tree import MOST_ENTRIES, PIECE_BYTES, TreeEntry, id_of, tree_error
from holdfast.errors import BadJobFile, BadRequest

IGNORED = Path(__file__).parents[2] / "dashboard/src/code/ignored.cases.json"
"""Ignore rules with sent and ignored paths, also used by tests of the dashboard."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "code"
    for name in ("src/train.py", "runs/log", ".git/config", "data/big.bin"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)
    (top / "out").mkdir()
    (top / "latest").symlink_to("src/train.py")
    (top / "go.sh").write_text("")
    (top / "go.sh").chmod(0o755)
    (top / ".gitignore").write_text("runs/\n*.bin\n")
    return top


def test_folder_is_packed_without_ignored_files(folder: Path) -> None:
    packed = pack(folder)

    entries = {entry.path: entry for entry in packed.entries}
    assert set(entries) == {"src/train.py", "data/", "out/", "latest", "go.sh", ".gitignore"}
    assert entries["latest"].link == "src/train.py"
    assert entries["go.sh"].is_executable
    assert packed.read(entries["src/train.py"].pieces[0]) == b"src/train.py"
    assert tree_error(packed.entries) is None
    assert id_of(packed.entries) == id_of(pack(folder).entries[::-1])


def test_id_of_a_folder_is_stable_across_versions() -> None:
    entries = [
        TreeEntry(path="é.py", size_bytes=3, pieces=("a" * 64,), is_executable=True),
        TreeEntry(path="empty/"),
        TreeEntry(path="a/link", link="../é.py"),
    ]

    assert id_of(entries) == "6629789a1f10582f1e24c996c3d5608fc7678a3292472bb7838819af7d12e93e"


def test_skyignore_takes_precedence_over_gitignore(folder: Path) -> None:
    (folder / ".skyignore").write_text("src/\n")

    names = {entry.path for entry in pack(folder).entries}

    assert "runs/log" in names
    assert "src/train.py" not in names


@pytest.mark.parametrize("case", json.loads(IGNORED.read_text()), ids=lambda case: case["rules"])
def test_dashboard_and_command_line_ignore_the_same_files(case) -> None:
    ignored = ignored_by(case["rules"].encode())

    def is_sent(path: str) -> bool:
        parents = (f"{parent}/" for parent in Path(path).parents if parent.name)
        return all(is_included(name, ignored) for name in (path, *parents))

    assert [path for path in case["sent"] if not is_sent(path)] == []
    assert [path for path in case["left_out"] if is_sent(path)] == []


def test_large_file_has_several_pieces(folder: Path) -> None:
    content = os.urandom(PIECE_BYTES) + b"end"
    (folder / "weights").write_bytes(content)

    packed = pack(folder)

    [entry] = [entry for entry in packed.entries if entry.path == "weights"]
    assert b"".join(map(packed.read, entry.pieces)) == content


def test_pipe_is_skipped_with_a_note(folder: Path) -> None:
    os.mkfifo(folder / "pipe")

    packed = pack(folder)

    assert packed.notes == ("'pipe' is a pipe, and is not uploaded",)
    assert "pipe" not in {entry.path for entry in packed.entries}


@pytest.mark.parametrize("target", ["/etc/passwd", "../../up"])
def test_link_out_of_the_folder_is_refused(folder: Path, target: str) -> None:
    (folder / "loop").symlink_to(target)

    with pytest.raises(BadRequest, match="'loop' is a link out of the directory"):
        pack(folder)


def test_cyclic_link_is_refused(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")

    with pytest.raises(BadRequest, match="'loop' is a link that leads to itself; remove it"):
        pack(folder)


def test_file_changed_while_it_is_read_is_detected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = folder / "src" / "weights.npy"
    weights.write_bytes(b"a" * 2 * PIECE_BYTES)
    os.utime(
        weights, (1, 1)
    )  # Two writes within one clock tick of the file system are indistinguishable.
    sha256 = hashlib.sha256

    def changing(content: bytes) -> Any:
        """Change the file between two reads, like another program."""
        if content.startswith(b"a" * PIECE_BYTES):
            weights.write_bytes(b"b" * 2 * PIECE_BYTES)
        return sha256(content)

    monkeypatch.setattr(hashlib, "sha256", changing)

    with pytest.raises(ChangedFile, match=r"src/weights\.npy"):
        pack(folder)


def test_name_outside_utf8_is_refused(folder: Path) -> None:
    (folder / os.fsdecode(b"\xe9t\xe9")).write_text("")

    with pytest.raises(BadRequest, match=r"'\\udce9t\\udce9' is not UTF-8"):
        pack(folder)


def test_too_many_files_are_refused_with_their_folders(folder: Path) -> None:
    (folder / "many").mkdir()
    for number in range(MOST_ENTRIES):
        (folder / "many" / str(number)).touch()

    with pytest.raises(BadRequest, match=r"most are in many \(20,000\)"):
        pack(folder)


@pytest.mark.parametrize("change", [lambda file: file.write_text("new"), Path.unlink])
def test_file_changed_after_packing_is_detected(folder: Path, change) -> None:
    packed = pack(folder)
    [entry] = [entry for entry in packed.entries if entry.path == "src/train.py"]

    change(folder / "src" / "train.py")

    with pytest.raises(ChangedFile, match=r"src/train\.py"):
        packed.read(entry.pieces[0])


@pytest.mark.parametrize(
    ("url", "asked"), [("https://holdfast.example", 1), ("http://localhost", 0)]
)
def test_code_is_uploaded_to_remote_services_only(folder: Path, url: str, asked: int) -> None:
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.url.path)
        return httpx2.Response(200, json={"id": "0" * 64, "missing": []})

    with Client(url, transport=httpx2.MockTransport(answer)) as client:
        code = code_of(client, f"workdir: {folder}\nrun: x\n", None)

    assert seen == ["/v1/code/trees"] * asked
    assert code == ("0" * 64 if asked else None)


@pytest.mark.parametrize("url", ["https://holdfast.example", "http://localhost"])
def test_local_mounts_are_sent_to_a_local_service_only(folder: Path, url: str) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        return httpx2.Response(200, json={"id": "0" * 64, "missing": []})

    task = f"workdir: {folder}\nfile_mounts: {{/data: ./data}}\nrun: x\n"
    with Client(url, transport=httpx2.MockTransport(answer)) as client:
        if url.startswith("https"):
            with pytest.raises(BadJobFile, match=r"#/file_mounts//data: '\./data' is a path"):
                code_of(client, task, None)
        else:
            assert code_of(client, task, None) is None

    assert asked == []
