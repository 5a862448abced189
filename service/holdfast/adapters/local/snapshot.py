"""The user's files, copied the way SkyPilot would send them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

IGNORE_FILES: Final = (".skyignore", ".gitignore")
"""The first that is there counts, as in SkyPilot; only the one at the root does."""


def take_snapshot(source: Path, target: Path, *, without: Path) -> None:
    """Copy `source` to `target` but for `.git`, what the ignore file names, and the directory `without`.

    `without` is the service's own home: with `workdir: .` in the user's home, a copy would otherwise eat itself.
    Symbolic links stay links; sockets and pipes are left out.
    """
    ignored = _ignored(source)
    target.mkdir(parents=True)
    for place, folders, files in os.walk(source, onerror=_raise):
        here = Path(place).relative_to(source)
        folders[:] = [
            name
            for name in folders
            if name != ".git"
            and not ignored.match_file(f"{(here / name).as_posix()}/")
            and (source / here / name) != without
        ]
        for name in folders:
            if (source / here / name).is_symlink():
                _copy(source / here / name, target / here / name)
            else:
                (target / here / name).mkdir()
        for name in files:
            if name != ".git" and not ignored.match_file((here / name).as_posix()):
                _copy(source / here / name, target / here / name)


def _ignored(source: Path) -> GitIgnoreSpec:
    for name in IGNORE_FILES:
        if (source / name).is_file():
            return GitIgnoreSpec.from_lines((source / name).read_text().splitlines())
    return GitIgnoreSpec.from_lines([])


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink() or source.is_file():
        shutil.copy2(source, target, follow_symlinks=False)


def _raise(error: OSError) -> None:
    """os.walk would rather skip a folder it cannot read than say so."""
    raise error
