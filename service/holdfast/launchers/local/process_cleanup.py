"""Descendants of this process: none is lost, and all can be ended.

Linux only: a *subreaper* inherits the orphans among its descendants, so that nothing that it started, however often
it forked or changed its session, can leave the tree.

The second wall: everything that carries the mark of a launch is found and ended, whoever started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import psutil

from holdfast.errors import LauncherUnreachable
from holdfast.launchers.local.launch_dir import LaunchFolder

MARK: Final = "HOLDFAST_LAUNCH"
"""Names the launch directory in the environment of everything that a launch starts, so that strays can be found."""

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


LIMIT_S: Final = 10.0
"""For processes to go once they are killed. Smaller: a busy machine looks unreachable. Bigger: a look hangs on one
that hangs in the kernel."""
PAUSE_S: Final = 0.02


def kill_marked_processes(folder: LaunchFolder) -> None:
    """End all processes of a launch whose supervisor is dead; when this returns, nothing of it runs.

    Guards go last: as long as they live, nothing below them can get out of their sight, not even a program that has
    emptied its environment.

    Raises:
        LauncherUnreachable: some of it does not go; look again later.
    """
    deadline_s = time.monotonic() + LIMIT_S
    while marked := set(_marked(folder)):
        below = {child for process in marked for child in _below(process)}
        for process in below or marked:
            with suppress(
                psutil.NoSuchProcess
            ):  # It checks that the pid has not gone to somebody else.
                process.kill()
        if time.monotonic() > deadline_s:
            pids = ", ".join(str(process.pid) for process in marked | below)
            raise LauncherUnreachable(f"processes of a dead launch do not end: {pids}")
        time.sleep(PAUSE_S)
    if folder.group and not folder.group.end():
        raise LauncherUnreachable(f"processes in {folder.group.path} do not end")


def _marked(folder: LaunchFolder) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # Gone, ended but not reaped, or somebody else's.
            if process.pid != os.getpid() and process.environ().get(MARK) == str(folder.path):
                yield process


def _below(process: psutil.Process) -> Iterator[psutil.Process]:
    with suppress(psutil.Error):
        for child in process.children(recursive=True):
            if child.status() != psutil.STATUS_ZOMBIE:
                yield child
