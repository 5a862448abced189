"""Disk space and file descriptors of the service.

On a full disk, nothing is recorded, and the service is not ready. Exhausted file descriptors are an ordinary state
of a busy machine, so they are logged in one line. asyncio reports each connection that it cannot accept with a
traceback, thousands in a second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

LEAST_BYTES: Final = 16 * 1024 * 1024
"""Free bytes below which a disk counts as full. A lower value may not hold a group of
reports with its journal; a higher value rejects small disks."""


def disk_trouble(folders: Iterable[Path], least_bytes: int = LEAST_BYTES) -> str | None:
    """The reason why one of the directories is not writable; None if all are."""
    for folder in folders:
        try:
            found = os.statvfs(folder)
        except OSError as error:
            return f"the directory {folder} cannot be read ({error.strerror}); mount it again"
        if found.f_flag & os.ST_RDONLY:
            return f"the disk of {folder} is mounted read-only; mount it for writing"
        if (room_bytes := found.f_bavail * found.f_frsize) < least_bytes:
            return f"the disk of {folder} is full: {room_bytes} bytes are free; free more space"
    return None


log = logging.getLogger(__name__)

EACH_S: Final = 60.0
"""Seconds between two log lines. A lower value fills the log; a higher value shows the
ongoing state later."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_lock = threading.Lock()
_next_s = 0.0


def are_exhausted(error: BaseException | None) -> bool:
    """Whether an error means that descriptors or memory are exhausted."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def note_exhausted_descriptors(error: BaseException | None) -> None:
    """Log one line, unless one was logged recently."""
    global _next_s  # noqa: PLW0603 - one log, one clock
    with _lock:
        now_s = time.monotonic()
        if now_s < _next_s:
            return
        _next_s = now_s + EACH_S
    log.warning(
        "no more connections or files can be opened (%s); callers wait: raise the limit of open files (ulimit -n), or lower HOLDFAST_STREAMS",
        error,
    )


def report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler for the server's event loop."""
    error = context.get("exception")
    if are_exhausted(error):
        note_exhausted_descriptors(error)
    elif not _is_accept_after_close(context):
        loop.default_exception_handler(context)


def _is_accept_after_close(context: dict[str, Any]) -> bool:
    """Whether asyncio retries a failed accept on a socket that has been closed since.

    Each accept that failed for lack of descriptors leaves one retry, so that a shutdown after a shortage would log
    thousands of them.
    """
    is_retry = "._start_serving(" in context.get("message", "")
    return is_retry and isinstance(context.get("exception"), ValueError)
