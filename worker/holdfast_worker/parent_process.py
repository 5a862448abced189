"""A tether: a process that dies with its parent, so that a killed wrapper leaves no ranks that hold a GPU; and lets the
wrapper look into it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_PTRACER: Final = 0x59616D61


def die_with_parent(starter: int | None = None) -> None:
    """From now on this process is killed when its parent dies. Where the kernel cannot do it, nothing happens.

    `starter` is the process id of who started it; None: whoever is the parent now. To load torch takes seconds, in which the parent
    may have died already: then somebody else's child would be tied to init, and train on for nobody.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = starter or os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the tie was made.
        os.kill(os.getpid(), signal.SIGKILL)


def allow_ptrace(pid: int) -> None:
    """From now on that process and those below it may look into this one, where the kernel lets only ancestors do so."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
