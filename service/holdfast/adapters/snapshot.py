"""The user's files, copied the way SkyPilot would send them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from holdfast.errors import LaunchRefused

IGNORE_FILES: Final = (".skyignore", ".gitignore")
"""The first that is there counts, as in SkyPilot; only the one at the root does."""


def take_snapshot(source: Path, target: Path, *, without: Collection[Path]) -> None:
    """Copy `source` to `target` but for `.git`, what the ignore file names, and the directories `without`.

    Symbolic links stay links; sockets and pipes are left out.

    Raises:
        LaunchRefused: the ignore file cannot be understood, or something may not be read.
        OSError: it could not be done this time.
    """
    try:
        _take_snapshot(source.resolve(), target, without)
    except PermissionError as error:
        raise LaunchRefused(f"{error.filename} of the workdir cannot be read") from error


def _take_snapshot(source: Path, target: Path, without: Collection[Path]) -> None:
    left_out = {path.resolve() for path in without}
    ignored = _ignored(source)
    target.mkdir(parents=True)
    for place, folders, files in os.walk(source, onerror=_raise):
        here = Path(place)
        there = target / here.relative_to(source)
        folders[:] = [
            name
            for name in folders
            if _goes(f"{(here / name).relative_to(source)}/", ignored)
            and here / name not in left_out
        ]
        for name in folders:
            if (here / name).is_symlink():
                _copy(here / name, there / name)
            else:
                (there / name).mkdir()
        for name in files:
            if _goes(str((here / name).relative_to(source)), ignored):
                _copy(here / name, there / name)


def _ignored(source: Path) -> GitIgnoreSpec:
    for name in IGNORE_FILES:
        if (source / name).is_file():
            lines = (source / name).read_text(errors="surrogateescape").splitlines()
            try:
                return GitIgnoreSpec.from_lines(lines)
            except ValueError as error:
                raise LaunchRefused(f"{name} of the workdir: {error}") from error
    return GitIgnoreSpec.from_lines([])


def _goes(name: str, ignored: GitIgnoreSpec) -> bool:
    """True for a relative name that is sent; directories end with a slash."""
    return Path(name).name != ".git" and not ignored.match_file(name)


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink() or source.is_file():
        shutil.copy2(source, target, follow_symlinks=False)


def _raise(error: OSError) -> None:
    """os.walk would rather skip a folder it cannot read than say so."""
    raise error
