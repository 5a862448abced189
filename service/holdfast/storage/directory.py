"""A checkpoint store in a directory.

Links are neither followed nor searched, so that outside files stay untouched.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from holdfast_worker.protocol.checkpoint_keys import DATA
from holdfast_worker.protocol.output_files import OUTPUTS

from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable
from holdfast.host.allowed_folders import Folders
from holdfast.host.untrusted_files import opened_file, opened_folder
from holdfast.ports import Clock, StoredObject, StoreListing

_TRANSIENT: Final = frozenset({errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
"""Errors of network file systems that may be temporary."""


class DirectoryCheckpointBucket:
    """A job's objects below a directory, which a worker creates with its first object."""

    def __init__(self, root: Path, clock: Clock, folders: Folders | None = None) -> None:
        """`folders` checks the directory for confined jobs; None: the job is the owner's."""
        self._root = root
        self._clock = clock
        self._folders = folders

    def list_objects(self, directory: str) -> StoreListing:
        """See `CheckpointBucket`."""
        with _translate_errors():
            try:
                with self._opened(directory) as top:
                    at = self._now()
                    files = list(_files(top, directory))
                    changed = os.fstat(top).st_mtime
            except FileNotFoundError:
                return StoreListing(self._now(), ())
        if files:
            return StoreListing(at, tuple(files))
        return StoreListing(at, (StoredObject(directory, 0, _utc_time(changed)),))

    def list_directories(self, prefix: str) -> Sequence[str]:
        """See `CheckpointBucket`."""
        with _translate_errors():
            try:
                with self._opened("") as top, os.scandir(top) as entries:
                    found = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return ()
        return [f"{name}/" for name in found if name.startswith(prefix)]

    def has(self, key: str) -> bool:
        """See `CheckpointBucket`."""
        with _translate_errors(), suppress(FileNotFoundError), opened_file(*self._path_parts(key)):
            return True
        return False

    def read(self, key: str) -> bytes | None:
        """See `CheckpointBucket`."""
        with _translate_errors():
            try:
                with opened_file(*self._path_parts(key)) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def delete(self, keys: Sequence[str]) -> None:
        """See `CheckpointBucket`.

        Deleting the last file of a checkpoint also deletes its directories.
        """
        with _translate_errors():
            for key in keys:
                if not key.endswith("/"):
                    above, _, name = key.rpartition("/")
                    with suppress(FileNotFoundError), self._opened(above) as folder:
                        os.unlink(name, dir_fd=folder)
            # No other directories are deleted: a worker may be about to write into them.
            for top in sorted(
                {key.partition("/")[0] for key in keys if key.startswith((DATA, OUTPUTS))}
            ):
                with suppress(OSError), self._opened("") as root:
                    for path, _, _, _ in os.fwalk(top, topdown=False, dir_fd=root):
                        with suppress(OSError):
                            os.rmdir(path, dir_fd=root)

    def _opened(self, directory: str) -> AbstractContextManager[int]:
        return opened_folder(*self._path_parts(directory))

    def _path_parts(self, key: str) -> tuple[Path, list[str]]:
        """Return a directory, and the names from there to a key, whose links must not be followed.

        Raises:
            CheckpointStoreRefused: the job may not use the directory.
        """
        names = [self._root.name, *filter(None, key.split("/"))]
        if self._folders is None:
            return self._root.parent, names
        real = self._root.parent.resolve()
        if why := self._folders.refusal(real):
            raise CheckpointStoreRefused(f"{self._root.parent} {why}")
        return Path("/"), [*real.parts[1:], *names]

    def _now(self) -> datetime:
        """Return the time by the clock that dates the files, which may be another machine's."""
        try:
            with self._opened("") as top, TemporaryFile(dir=f"/proc/self/fd/{top}") as probe:
                return _utc_time(os.fstat(probe.fileno()).st_mtime)
        except FileNotFoundError:
            return self._clock.now()  # The directory is empty, so there is nothing to compare with.


def _files(top: int, directory: str) -> Iterator[StoredObject]:
    """Yield all files below an open directory; errors of the operating system are raised."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for place, _, names, here in os.fwalk(".", onerror=refuse, dir_fd=top):
        for name in names:
            with suppress(FileNotFoundError):  # It has been deleted in the meantime.
                stat = os.stat(name, dir_fd=here, follow_symlinks=False)
                key = (Path(directory) / place / name).as_posix()
                yield StoredObject(key, stat.st_size, _utc_time(stat.st_mtime))


def _utc_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = CheckpointStoreUnreachable if error.errno in _TRANSIENT else CheckpointStoreRefused
        words = error.strerror or str(error)
        raise kind(f"{words}: {error.filename}" if error.filename else words) from error
