"""Descendants of this process: none is lost, and all can be ended.

Linux only: a *subreaper* inherits the orphans among its descendants, so that nothing that it started, however often
it forked or changed its session, can leave the tree.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import psutil

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38


def gain_no_privileges() -> None:
    """Have this process, and all that it starts, gain nothing by programs that are set-uid."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def become_subreaper() -> None:
    """Inherit all orphans below this process from now on."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, by: signal.Signals) -> None:
    """Have the kernel send `by` to this process when `parent` ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:  # It ended before the kernel knew of our wish.
        os.kill(os.getpid(), by)


def ended_children() -> Iterator[tuple[int, int]]:
    """Pid and exit code of the children that have ended and were not reaped before; a death by signal n is -n."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def alone() -> bool:
    """True when this process has no children left, not even ended ones."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def end_descendants() -> None:
    """Kill all that is below this process, and return when it is gone."""
    here = psutil.Process()
    while True:
        for process in here.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # Somebody may have forked between the listing and the kill: list again after every death.
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
