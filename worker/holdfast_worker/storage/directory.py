"""Checkpoint objects as files in a directory."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from holdfast_worker.console import log_info
from holdfast_worker.protocol.checkpoint_keys import DRAFT
from holdfast_worker.protocol.object_stores import FILES
from holdfast_worker.storage.base import (
    Bytes,
    ObjectNotFound,
    ObjectUnreadable,
    StoreError,
    StoreRefused,
    StoreUnreachable,
    cut_views,
)

LOCK: Final = ".lock"
"""A lock file, not an object; its holder may replace an object."""

LOCK_POLL_S: Final = 0.01
"""Poll interval for the lock. A higher value wastes time; a lower value wastes CPU."""

LOCK_TIMEOUT_S: Final = 10.0
"""How long to wait for the lock. A higher value blocks an attempt whose predecessor was
suspended while it held the lock; a lower value skips the lock on a slow network file system."""

READ_CHUNK_BYTES: Final = 1 << 20
"""Bytes per read. A higher value wastes memory; a lower value adds calls."""

TRANSIENT: Final = frozenset({errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT})
"""Error codes of transient faults of network file systems."""


class DirectoryStore:
    """Objects as files under a directory that all ranks share."""

    def __init__(self, root: Path, lock_s: float = LOCK_TIMEOUT_S) -> None:
        self._root = root
        self._lock_s = lock_s

    max_concurrency = 4
    is_remote = False
    place = FILES

    def put(self, key: str, data: Bytes) -> None:
        """See `Store`."""
        try:
            draft = self._write_draft(key, data)
            draft.replace(self._root / key)
            _sync_directory(draft.parent)
        except OSError as error:
            raise _to_store_error(error) from error

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See `Store`. Uses a hard link, because a rename would overwrite."""
        try:
            draft = self._write_draft(key, data)
            try:
                (self._root / key).hardlink_to(draft)
            except FileExistsError:
                return False
            finally:
                draft.unlink()
            _sync_directory(draft.parent)
        except OSError as error:
            raise _to_store_error(error) from error
        return True

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """See `Store`. Holds a lock, which the kernel releases when the holder dies.

        A suspended holder, such as one on a machine believed lost, keeps the lock, so waiting for it is limited. Of
        two processes that continue without the lock, both may report success; the later write stays.
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
                    # Closing is not enough: a loader worker forked in the meantime also has the file open.
                    fcntl.flock(held, fcntl.LOCK_UN)
        except OSError as error:
            raise _to_store_error(error) from error
        return True

    def get(self, key: str) -> bytes:
        """See `Store`. Copies each chunk, because the chunks share one buffer."""
        return b"".join(map(bytes, self.stream(key)))

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        """See `Store`."""
        try:
            with (self._root / key).open("rb", buffering=0) as file:
                for view in cut_views(into, READ_CHUNK_BYTES):
                    at = 0
                    while at < len(view):
                        if not (size := file.readinto(view[at:])):
                            return
                        yield view[at : at + size]
                        at += size
        except (FileNotFoundError, IsADirectoryError) as error:
            raise ObjectNotFound(key) from error
        except OSError as error:
            if error.errno == errno.EIO:
                raise ObjectUnreadable(f"{error.strerror}: {self._root / key}") from error
            raise _to_store_error(error) from error

    def list(self, prefix: str) -> list[str]:
        """See `Store`."""
        top = self._root / prefix.rpartition("/")[0]
        # Includes drafts, so that those of a killed process can be deleted.
        files = (f for f in top.rglob("*") if f.is_file() and f.name != LOCK)
        try:
            keys = [file.relative_to(self._root).as_posix() for file in files]
        except OSError as error:
            raise _to_store_error(error) from error
        return [key for key in keys if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        """See `Store`. Also removes the directory once it is empty."""
        file = self._root / key
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise _to_store_error(error) from error
        with suppress(OSError):
            file.parent.rmdir()

    def _write_draft(self, key: str, data: Bytes) -> Path:
        """Write a durable temporary file next to the final path of `key`."""
        place = self._root / key
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f"{DRAFT}{secrets.token_hex(4)}-{place.name}")
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # A partial file would waste space on a full disk.
            draft.unlink(missing_ok=True)
            raise
        return draft


def _sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(file: IO[bytes], within_s: float) -> None:
    """Lock the file exclusively, or continue without the lock after `within_s`."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                log_info(
                    f"{file.name} was not released within {within_s:g} s; continuing without the lock"
                )
                return
            time.sleep(LOCK_POLL_S)
        else:
            return


def _to_store_error(error: OSError) -> StoreError:
    kind = StoreUnreachable if error.errno in TRANSIENT else StoreRefused
    return kind(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
