"""A checkpoint store that is a folder. Links in it are neither followed nor looked behind: nothing outside is touched."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from holdfast_worker.names import DATA

from holdfast.errors import DepotRefused, DepotUnreachable
from holdfast.ports import Clock, Look, Stored

_PASSING: Final = frozenset({errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
"""What a network file system says in a bad moment."""


class FolderDepot:
    """What a job keeps below a folder, which a worker makes with its first object."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock

    def look(self, directory: str) -> Look:
        """See `Depot`."""
        top = self._root / directory
        with _in_words():
            at = self._now()
            files = [stored for path in _files(top) if (stored := self._stored(path))]
            if files or not top.is_dir():
                return Look(at, tuple(files))
            return Look(at, (Stored(directory, 0, _moment(top.stat().st_mtime)),))

    def directories(self, prefix: str) -> Sequence[str]:
        """See `Depot`."""
        with _in_words():
            try:
                entries = [e for e in os.scandir(self._root) if e.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return ()
        return [f"{entry.name}/" for entry in entries if entry.name.startswith(prefix)]

    def has(self, key: str) -> bool:
        """See `Depot`."""
        with _in_words():
            return (self._root / key).is_file()

    def read(self, key: str) -> bytes | None:
        """See `Depot`."""
        with _in_words():
            try:
                return (self._root / key).read_bytes()
            except FileNotFoundError:
                return None

    def delete(self, keys: Sequence[str]) -> None:
        """See `Depot`. The last file of a checkpoint takes the directories of that checkpoint along."""
        with _in_words():
            for key in keys:
                if not key.endswith("/"):
                    (self._root / key).unlink(missing_ok=True)
            # No other directories: a worker may be about to write into them.
            for top in sorted({key.partition("/")[0] for key in keys if key.startswith(DATA)}):
                for path, _, _ in os.walk(self._root / top, topdown=False):
                    with suppress(OSError):
                        Path(path).rmdir()

    def _now(self) -> datetime:
        """The time by the clock that dates the files, which may be that of another machine."""
        try:
            with TemporaryFile(dir=self._root) as probe:
                return _moment(os.fstat(probe.fileno()).st_mtime)
        except FileNotFoundError:
            return self._clock.now()  # Nothing is there yet, and so nothing to be compared with.

    def _stored(self, path: Path) -> Stored | None:
        """A file; None if it is gone by now."""
        try:
            told = path.lstat()
        except FileNotFoundError:
            return None
        key = path.relative_to(self._root).as_posix()
        return Stored(key, told.st_size, _moment(told.st_mtime))


def _files(top: Path) -> Iterator[Path]:
    """All files below a folder; none if it is not there. Silence of the operating system is no answer."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for folder, _, names in os.walk(top, onerror=refuse):
        yield from (Path(folder) / name for name in names)


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
