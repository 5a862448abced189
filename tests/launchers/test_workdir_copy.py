"""The copy of a workdir: copied files and excluded files."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.errors import LaunchRefused
from holdfast.launchers.workdir_copy import copy_workdir


def create_files(root: Path, *names: str) -> None:
    """Create files below `root`; a name that ends with a slash is a directory."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A workdir with typical contents."""
    root = tmp_path / "source"
    create_files(
        root,
        "train.py",
        ".env.example",
        "data/train/a.bin",
        "data/keep.bin",
        "runs/1/log",
        "model/net.py",
        "model/net.pyc",
        "empty/",
        ".git/config",
        "model/.git/config",
        "home/launches/job-1/history.jsonl",
    )
    (root / "latest").symlink_to("train.py")
    (root / "broken").symlink_to("/no/such/place")
    return root


def copied(source: Path) -> set[str]:
    """Relative names of all files and empty directories in a copy."""
    target = source.parent / "target"
    copy_workdir(source, target, without={source / "home"})
    return {
        path.relative_to(target).as_posix()
        for path in target.rglob("*")
        if path.is_symlink() or path.is_file() or not any(path.iterdir())
    }


def test_copy_drops_set_user_id_bits(source: Path) -> None:
    """The service owns the copy: with the set-user-ID bit, a program would run as the service."""
    (source / "train.py").chmod(0o6755)

    copied(source)

    assert (source.parent / "target" / "train.py").stat().st_mode & 0o7777 == 0o755


EVERYTHING = {
    "train.py",
    ".env.example",
    "data/train/a.bin",
    "data/keep.bin",
    "runs/1/log",
    "model/net.py",
    "model/net.pyc",
    "empty",
    "latest",
    "broken",
}


def test_copy_excludes_version_control_and_holdfast_home(source: Path) -> None:
    assert copied(source) == EVERYTHING


def test_gitignored_files_are_not_copied(source: Path) -> None:
    (source / ".gitignore").write_text("# notes\n*.pyc\n/runs/\ndata/*\n!data/keep.bin\n")

    left_out = {"model/net.pyc", "runs/1/log", "data/train/a.bin"}
    assert copied(source) == EVERYTHING - left_out | {".gitignore"}


def test_skyignore_replaces_gitignore(source: Path) -> None:
    (source / ".gitignore").write_text("*.py\n")
    (source / ".skyignore").write_text("data\n")

    left_out = {"data/train/a.bin", "data/keep.bin"}
    assert copied(source) == EVERYTHING - left_out | {".gitignore", ".skyignore"}


def test_copy_keeps_links_and_modes(source: Path) -> None:
    (source / "train.py").chmod(0o755)

    copied(source)
    target = source.parent / "target"

    assert (target / "latest").readlink() == Path("train.py")
    assert (target / "train.py").stat().st_mode & 0o777 == 0o755


def test_invalid_gitignore_pattern_is_rejected(source: Path) -> None:
    (source / ".gitignore").write_text("*.pyc\n!\n")

    with pytest.raises(LaunchRefused, match="gitignore"):
        copied(source)
