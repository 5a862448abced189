"""Checkpoint stores: where objects are kept by key. A directory here, S3 behind its own door."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from holdfast_worker.console import log_info
from holdfast_worker.protocol.checkpoint_keys import DRAFT
from holdfast_worker.storage.base import (
    Bytes,
    Missing,
    Refused,
    StoreError,
    Unreachable,
    Unreadable,
)

LOCK: Final = ".lock"
"""A file that is no object; who holds it may replace one."""

LOCK_LOOK_S: Final = 0.01
"""Between two tries to get it. Longer waits for nothing, shorter is work for nothing."""

LOCK_S: Final = 10.0
"""For whoever replaces an object to be done with it. Longer holds up a placement whose predecessor was stopped in the middle of
that; shorter does without the lock where a network file system is slow."""

STRETCH_BYTES: Final = 1 << 20
"""Read in one go. Larger is memory for nothing, smaller is calls for nothing."""

TRANSIENT: Final = frozenset({errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
"""What a network file system says in a bad moment."""


class DirectoryStore:
    """Objects as files below a directory, which all ranks must see."""

    def __init__(self, root: Path, lock_s: float = LOCK_S) -> None:
        self._root = root
        self._lock_s = lock_s

    lanes = 4
    is_far = False

    def put(self, key: str, data: Bytes) -> None:
        """See `Store`."""
        try:
            draft = self._draft(key, data)
            draft.replace(self._root / key)
            _sync_directory(draft.parent)
        except OSError as error:
            raise _translated(error) from error

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See `Store`. A link, since a rename would overwrite."""
        try:
            draft = self._draft(key, data)
            try:
                (self._root / key).hardlink_to(draft)
            except FileExistsError:
                return False
            finally:
                draft.unlink()
            _sync_directory(draft.parent)
        except OSError as error:
            raise _translated(error) from error
        return True

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """See `Store`. Who swaps holds a lock meanwhile, which the kernel takes from those that die.

        It does not take it from those that were stopped, as a machine is that was thought lost. Nobody waits for them for
        ever; two that go on without the lock may both believe that theirs was the swap, and the later one's is.
        """
        lock = self._root / LOCK
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            with lock.open("wb") as held:
                _lock(held, self._lock_s)
                try:
                    found = self._root / key
                    if (found.read_bytes() if found.exists() else None) != old:
                        return False
                    self.put(key, new)
                finally:
                    # Closing is not enough: a loader worker that was forked in between has the file open, too.
                    fcntl.flock(held, fcntl.LOCK_UN)
        except OSError as error:
            raise _translated(error) from error
        return True

    def get(self, key: str) -> bytes:
        """See `Store`. A copy of each stretch, as all of them lie in the same memory, one after the other."""
        return b"".join(map(bytes, self.stream(key)))

    def stream(self, key: str) -> Iterator[memoryview]:
        """See `Store`."""
        buffer = memoryview(bytearray(STRETCH_BYTES))
        try:
            with (self._root / key).open("rb", buffering=0) as file:
                while size := file.readinto(buffer):
                    yield buffer[:size]
        except (FileNotFoundError, IsADirectoryError) as error:
            raise Missing(key) from error
        except OSError as error:
            if error.errno == errno.EIO:
                raise Unreadable(f"{error.strerror}: {self._root / key}") from error
            raise _translated(error) from error

    def list(self, prefix: str) -> list[str]:
        """See `Store`."""
        top = self._root / prefix.rpartition("/")[0]
        # Drafts too: those of a process that was killed must be found to be removed.
        files = (f for f in top.rglob("*") if f.is_file() and f.name != LOCK)
        try:
            keys = [file.relative_to(self._root).as_posix() for file in files]
        except OSError as error:
            raise _translated(error) from error
        return [key for key in keys if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        """See `Store`. The last object of a directory takes it along."""
        file = self._root / key
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise _translated(error) from error
        with suppress(OSError):
            file.parent.rmdir()

    def _draft(self, key: str, data: Bytes) -> Path:
        """A durable file beside the place of `key`, not yet under its name."""
        place = self._root / key
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f"{DRAFT}{secrets.token_hex(4)}-{place.name}")
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # What a full disk needs least is the half of a file.
            draft.unlink(missing_ok=True)
            raise
        return draft


def _sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, not only the contents of its files."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(file: IO[bytes], within_s: float) -> None:
    """Be the only one who has this lock, or give up trying."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                log_info(f"{file.name} is held by somebody who does nothing; going on without it")
                return
            time.sleep(LOCK_LOOK_S)
        else:
            return


def _translated(error: OSError) -> StoreError:
    kind = Unreachable if error.errno in TRANSIENT else Refused
    return kind(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
