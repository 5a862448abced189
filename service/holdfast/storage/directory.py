"""A checkpoint store that is a folder. Links in it are neither followed nor looked behind: nothing outside is touched."""

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

from holdfast.errors import DepotRefused, DepotUnreachable
from holdfast.host.allowed_folders import Folders
from holdfast.host.untrusted_files import opened_file, opened_folder
from holdfast.ports import Clock, Stored, StoreListing

_PASSING: Final = frozenset({errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
"""What a network file system says in a bad moment."""


class DirectoryCheckpointBucket:
    """What a job keeps below a folder, which a worker makes with its first object."""

    def __init__(self, root: Path, clock: Clock, folders: Folders | None = None) -> None:
        """`folders` say whether a confined job may use this folder; None: the job is the owner's."""
        self._root = root
        self._clock = clock
        self._folders = folders

    def look(self, directory: str) -> StoreListing:
        """See `Depot`."""
        with _in_words():
            try:
                with self._opened(directory) as top:
                    at = self._now()
                    files = list(_files(top, directory))
                    changed = os.fstat(top).st_mtime
            except FileNotFoundError:
                return StoreListing(self._now(), ())
        if files:
            return StoreListing(at, tuple(files))
        return StoreListing(at, (Stored(directory, 0, _moment(changed)),))

    def directories(self, prefix: str) -> Sequence[str]:
        """See `Depot`."""
        with _in_words():
            try:
                with self._opened("") as top, os.scandir(top) as entries:
                    found = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return ()
        return [f"{name}/" for name in found if name.startswith(prefix)]

    def has(self, key: str) -> bool:
        """See `Depot`."""
        with _in_words(), suppress(FileNotFoundError), opened_file(*self._place(key)):
            return True
        return False

    def read(self, key: str) -> bytes | None:
        """See `Depot`."""
        with _in_words():
            try:
                with opened_file(*self._place(key)) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def delete(self, keys: Sequence[str]) -> None:
        """See `Depot`. The last file of a checkpoint takes the directories of that checkpoint along."""
        with _in_words():
            for key in keys:
                if not key.endswith("/"):
                    above, _, name = key.rpartition("/")
                    with suppress(FileNotFoundError), self._opened(above) as folder:
                        os.unlink(name, dir_fd=folder)
            # No other directories: a worker may be about to write into them.
            for top in sorted({key.partition("/")[0] for key in keys if key.startswith(DATA)}):
                with suppress(OSError), self._opened("") as root:
                    for path, _, _, _ in os.fwalk(top, topdown=False, dir_fd=root):
                        with suppress(OSError):
                            os.rmdir(path, dir_fd=root)

    def _opened(self, directory: str) -> AbstractContextManager[int]:
        return opened_folder(*self._place(directory))

    def _place(self, key: str) -> tuple[Path, list[str]]:
        """A folder, and the names from there to a key, on which no link is followed.

        Raises:
            DepotRefused: the folder is not for this job.
        """
        names = [self._root.name, *filter(None, key.split("/"))]
        if self._folders is None:
            return self._root.parent, names
        real = self._root.parent.resolve()
        if why := self._folders.refusal(real):
            raise DepotRefused(f"{self._root.parent} {why}")
        return Path("/"), [*real.parts[1:], *names]

    def _now(self) -> datetime:
        """The time by the clock that dates the files, which may be that of another machine."""
        try:
            with self._opened("") as top, TemporaryFile(dir=f"/proc/self/fd/{top}") as probe:
                return _moment(os.fstat(probe.fileno()).st_mtime)
        except FileNotFoundError:
            return self._clock.now()  # Nothing is there yet, and so nothing to be compared with.


def _files(top: int, directory: str) -> Iterator[Stored]:
    """All files below an open folder. Silence of the operating system is no answer."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for place, _, names, here in os.fwalk(".", onerror=refuse, dir_fd=top):
        for name in names:
            with suppress(FileNotFoundError):  # It is gone by now.
                told = os.stat(name, dir_fd=here, follow_symlinks=False)
                key = (Path(directory) / place / name).as_posix()
                yield Stored(key, told.st_size, _moment(told.st_mtime))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = DepotUnreachable if error.errno in _PASSING else DepotRefused
        words = error.strerror or str(error)
        raise kind(f"{words}: {error.filename}" if error.filename else words) from error
