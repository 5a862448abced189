"""Ties a rank to its wrapper: it dies with it, and keeps no GPU; the wrapper may ptrace it.

Also names a rank that was forked, for tools that list processes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15
PR_SET_CHILD_SUBREAPER: Final = 36
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


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies; no effect except on Linux."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_ptrace(pid: int) -> None:
    """Allow a process and its descendants to ptrace this one, also under Yama's restriction."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def set_name(name: str) -> None:
    """Set the name of this process in `/proc/<pid>/comm`, of which 15 bytes are shown."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def set_command_line(words: Sequence[str]) -> None:
    """Set `/proc/<pid>/cmdline` of this process; no effect if it is longer than the current one.

    The rest is filled with empty arguments. Only a privileged process could shorten it.
    """
    if not sys.platform.startswith("linux"):
        return
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    # Fields 48 and 49 of proc(5); the first two end with a parenthesis.
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    if start and len(text) <= end - start:
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
