"""A tether: a process that dies with its parent, so that a killed wrapper leaves no ranks that hold a GPU."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def tie_to_parent() -> None:
    """From now on this process is killed when its parent dies. Where the kernel cannot do it, nothing happens."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the tie was made.
        os.kill(os.getpid(), signal.SIGKILL)
