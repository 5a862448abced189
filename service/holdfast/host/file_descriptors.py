"""File descriptors that run out: an ordinary state of a busy machine, reported in one line and not as a bug for each connection.

asyncio reports each connection that it cannot accept with a traceback, thousands in a second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from typing import Any, Final

log = logging.getLogger(__name__)

EACH_S: Final = 60.0
"""Time between two lines. A lower value fills the log; a higher value shows later that the state lasts."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_lock = threading.Lock()
_next_s = 0.0


def are_exhausted(error: BaseException | None) -> bool:
    """Whether an error says that this process or machine has no descriptors or memory for another connection or file."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def note(error: BaseException | None) -> None:
    """Write one line to the log, unless one was written a moment ago."""
    global _next_s  # noqa: PLW0603 - one log, one clock
    with _lock:
        now_s = time.monotonic()
        if now_s < _next_s:
            return
        _next_s = now_s + EACH_S
    log.warning(
        "no more connections or files can be opened (%s); callers wait: raise the limit of open files (ulimit -n), or HOLDFAST_STREAMS is too high",
        error,
    )


def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio found wrong, for the event loop of the server."""
    error = context.get("exception")
    if are_exhausted(error):
        note(error)
    elif not _is_accept_after_close(context):
        loop.default_exception_handler(context)


def _is_accept_after_close(context: dict[str, Any]) -> bool:
    """Whether asyncio retries an accept that failed for want of descriptors, on a socket that was closed in the meantime.

    Each failed accept leaves one retry, so that a shutdown after a shortage would log thousands of them.
    """
    is_retry = "._start_serving(" in context.get("message", "")
    return is_retry and isinstance(context.get("exception"), ValueError)
