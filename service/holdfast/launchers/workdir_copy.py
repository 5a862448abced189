"""Copies a user's working directory with the same exclusions as SkyPilot."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from pathspec import GitIgnoreSpec

from holdfast.code_upload.packing import IGNORE_FILES, ignored_by, is_included
from holdfast.errors import LaunchRefused
from holdfast.host.allowed_folders import Folders

BLOCK_BYTES: Final = 1024 * 1024
"""Bytes of a file held in memory at once."""

_NO_FILE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
"""Errors of opening a path that is not a regular file: missing, a link or a socket."""


def copy_workdir(
    source: Path, target: Path, *, without: Collection[Path] = (), folders: Folders = Folders()
) -> None:
    """Copy `source` to `target` without `.git`, ignored files and the directories `without`.

    Also excludes the service's home. Symbolic links remain links; sockets and pipes are skipped.

    Raises:
        LaunchRefused: the job may not use this directory, the ignore file is invalid, or a file is not readable.
        OSError: a temporary failure.
    """
    try:
        _copy_tree(source, target, without, folders)
    except PermissionError as error:
        raise LaunchRefused(f"cannot read {error.filename} in the workdir") from error


def _copy_tree(source: Path, target: Path, without: Collection[Path], folders: Folders) -> None:
    top = source.resolve()
    left_out = {path.resolve() for path in (*without, *filter(None, [folders.home]))}
    target.mkdir(parents=True)
    ignored = GitIgnoreSpec.from_lines([])
    # Each directory is held open while it is read, so that one replaced by a link is not followed.
    for place, names, files, here in os.fwalk(top, onerror=_raise):
        below = Path(place).relative_to(top)
        if not below.parts:
            _check_allowed(source, here, folders)
            ignored = _ignore_spec(here, follows=not folders.is_confined)
        links = {name for name in names if _is_link(name, here)}
        for name in (*files, *(name for name in links if is_included(f"{below / name}/", ignored))):
            if name in links or is_included(str(below / name), ignored):
                _copy(name, here, target / below / name)
        names[:] = [
            name
            for name in names
            if name not in links
            and is_included(f"{below / name}/", ignored)
            and top / below / name not in left_out
        ]
        for name in names:
            (target / below / name).mkdir()


def _check_allowed(source: Path, folder: int, folders: Folders) -> None:
    """Reject a directory that the job may not use, by the real path of its open descriptor."""
    real = Path(f"/proc/self/fd/{folder}").readlink()
    if why := folders.refusal(real, without_home=True):
        raise LaunchRefused(f"workdir {source} {why}")


def _ignore_spec(folder: int, *, follows: bool) -> GitIgnoreSpec:
    for name in IGNORE_FILES:
        with _opened(name, folder, follows=follows) as file:
            if file is None:
                continue
            content = file.read()
        try:
            return ignored_by(content)
        except ValueError as error:
            raise LaunchRefused(f"{name} in the workdir is invalid: {error}") from error
    return GitIgnoreSpec.from_lines([])


def _is_link(name: str, folder: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


@contextmanager
def _opened(name: str, folder: int, *, follows: bool = False) -> Iterator[BinaryIO | None]:
    """Open a regular file of an open directory; yield None for anything else."""
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follows else os.O_NOFOLLOW)
    try:
        file = os.fdopen(os.open(name, flags, dir_fd=folder), "rb")
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        yield None
        return
    with file:
        yield file if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


def _copy(name: str, folder: int, target: Path) -> None:
    if _is_link(name, folder):
        target.symlink_to(os.readlink(name, dir_fd=folder))
        return
    with _opened(name, folder) as source:
        if source is None:
            return
        with target.open("wb") as copy:
            shutil.copyfileobj(source, copy, BLOCK_BYTES)
        known = os.fstat(source.fileno())
    # The set-user-ID bit is dropped: the copy belongs to the service and would run with its rights.
    target.chmod(known.st_mode & 0o777)
    os.utime(target, ns=(known.st_atime_ns, known.st_mtime_ns))


def _raise(error: OSError) -> None:
    """Raise the error, because os.fwalk would skip the directory and leave the copy incomplete."""
    raise error
