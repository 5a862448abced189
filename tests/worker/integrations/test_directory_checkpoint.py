"""A directory of files as one tracked state."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.integrations.directory_checkpoint import DirectoryCheckpoint
from holdfast_worker.storage.base import StoreError


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A directory as a framework saves it."""
    path = tmp_path / "made"
    (path / "shards").mkdir(parents=True)
    (path / "weights.bin").write_bytes(bytes(range(256)) * 40)
    (path / "shards" / "0").write_bytes(b"first")
    (path / "empty").touch()
    return path


def test_directory_is_restored_byte_for_byte(made: Path, tmp_path: Path) -> None:
    packed = DirectoryCheckpoint(ProcessGroup.single(), 0, tmp_path / "old")
    packed.pack(made, 7)
    again = DirectoryCheckpoint(ProcessGroup.single(), 0, tmp_path / "new")

    again.load_state_dict(packed.state_dict())

    path = tmp_path / "new" / "checkpoint-7"
    assert again.restored == path
    files = {f.relative_to(path).as_posix(): f.read_bytes() for f in path.rglob("*") if f.is_file()}
    assert files == {
        "weights.bin": bytes(range(256)) * 40,
        "shards/0": b"first",
        "empty": b"",
    }


def test_file_removed_after_packing_is_still_held(made: Path, tmp_path: Path) -> None:
    folder = DirectoryCheckpoint(ProcessGroup.single(), 0, tmp_path)
    folder.pack(made, 1)
    (made / "weights.bin").unlink()

    held = folder.state_dict()["files"]["weights.bin"]

    assert held.numpy().tobytes() == bytes(range(256)) * 40


def test_state_is_empty_before_the_first_save(tmp_path: Path) -> None:
    assert DirectoryCheckpoint(ProcessGroup.single(), 0, tmp_path).state_dict() == {
        "step": 0,
        "files": {},
    }


def test_unwritable_root_is_named(made: Path, tmp_path: Path) -> None:
    folder = DirectoryCheckpoint(ProcessGroup.single(), 0, made / "weights.bin")
    folder.pack(made, 1)

    with pytest.raises(StoreError, match=r"cannot be written to .*weights\.bin"):
        folder.load_state_dict(folder.state_dict())
