"""Tracks and kills all descendants of this process, and all processes of a dead launch.

Linux only. A *subreaper* adopts the orphans among its descendants, so that no process can leave the tree by forking or
changing its session. As a second safeguard, all processes that carry the marker of a launch are found and killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

import psutil

from holdfast.errors import LauncherUnreachable
from holdfast.launchers.local.launch_dir import LaunchDir

MARK_ENV: Final = "HOLDFAST_LAUNCH"
"""Variable with the launch directory, set for all processes so that orphans can be found."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38


def set_no_new_privs() -> None:
    """Prevent this process and its children from gaining privileges through set-uid programs."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def become_subreaper() -> None:
    """Adopt all orphans below this process from now on."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_parent_death_signal(parent: int, by: signal.Signals) -> None:
    """Have the kernel send `by` to this process when `parent` dies."""
    _prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:  # The parent died before the kernel call took effect.
        os.kill(os.getpid(), by)


def ended_children() -> Iterator[tuple[int, int]]:
    """Yield pid and exit code of ended children not yet reaped; a death by signal n is -n."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def has_no_children() -> bool:
    """Whether this process has no children, including ended ones."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def kill_descendants() -> None:
    """Kill all descendants of this process, and return when they have ended."""
    here = psutil.Process()
    while True:
        for process in here.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # A process may have forked between the listing and the kill, so list again after every death.
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def kill_orphans(keep: Collection[int]) -> None:
    """Kill all descendants of this process except the children `keep` and what is below them.

    Returns when they have ended.
    """
    here = psutil.Process()
    while orphans := [child for child in here.children() if child.pid not in keep]:
        for orphan in orphans:
            with suppress(psutil.NoSuchProcess):
                for process in (*orphan.children(recursive=True), orphan):
                    process.kill()
        # Those below an orphan become children of this process when it has ended.
        for orphan in orphans:
            with suppress(ChildProcessError):
                os.waitpid(orphan.pid, 0)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


LIMIT_S: Final = 10.0
"""Time for killed processes to end.
With a lower value, a busy machine appears unreachable; a higher value blocks longer on a process that hangs in the
kernel."""
PAUSE_S: Final = 0.02


def kill_marked_processes(folder: LaunchDir) -> None:
    """Kill all processes of a launch whose supervisor is dead; return when they have ended.

    Guards are killed last: while they live, they adopt every process below them, even one that has cleared its
    environment. All are stopped before one is killed: while processes start and end, a listing misses some, and a shell
    whose guard is dead would restart its killed child forever.

    Raises:
        LauncherUnreachable: some processes do not end; observe again later.
    """
    deadline_s = time.monotonic() + LIMIT_S
    stopped: set[psutil.Process] = set()
    while marked := set(_marked_processes(folder)):
        below = {child for process in marked for child in _descendants(process)}
        found = marked | below
        for process in found:
            with suppress(psutil.NoSuchProcess):  # psutil checks that the pid was not reused.
                process.suspend()
        if found <= stopped:
            for process in below or marked:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        stopped |= found
        if time.monotonic() > deadline_s:
            pids = ", ".join(str(process.pid) for process in found)
            raise LauncherUnreachable(
                f"processes of a launch without a supervisor do not end: {pids}"
            )
        time.sleep(PAUSE_S)
    if folder.group and not folder.group.remove():
        raise LauncherUnreachable(f"processes in {folder.group.path} do not end")


def _marked_processes(folder: LaunchDir) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # Ended, not reaped, or owned by another user.
            if process.pid != os.getpid() and process.environ().get(MARK_ENV) == str(folder.path):
                yield process


def _descendants(process: psutil.Process) -> Iterator[psutil.Process]:
    children: list[psutil.Process] = []
    with suppress(psutil.Error):
        children = process.children(recursive=True)
    for child in children:
        with suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                yield child
