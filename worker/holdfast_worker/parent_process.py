"""Ties a rank to its wrapper: it dies with it, and keeps no GPU; the wrapper may ptrace it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_PTRACER: Final = 0x59616D61


def die_with_parent(parent_pid: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies; no effect except on Linux.

    `parent_pid` is the process id of the process that started it; None: the current parent. Loading torch takes seconds, in which
    the parent may die. Without the id, an orphaned rank would be tied to init and continue to train.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = parent_pid or os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before the call.
        os.kill(os.getpid(), signal.SIGKILL)


def allow_ptrace(pid: int) -> None:
    """Allow a process and its descendants to ptrace this one, also under Yama's restriction."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
