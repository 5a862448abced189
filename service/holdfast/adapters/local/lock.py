"""The lock of a launch: whoever holds it may act for the launch, and a free one proves that nobody does.

It is an flock, so it belongs to an open file, not to a process: the submitter takes it and hands the open file to the
supervisor it starts. There is no moment in which the supervisor runs and the lock is free, and no death, however
sudden, that leaves it taken.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def take(path: Path) -> int | None:
    """A descriptor that holds the lock until its last copy is closed; None while somebody else holds it."""
    holder = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(holder)
        return None
    return holder


def is_free(path: Path) -> bool:
    """True when nobody holds the lock."""
    holder = take(path)
    if holder is None:
        return False
    os.close(holder)
    return True
