"""The second wall: everything that carries the mark of a launch is found and ended, whoever started it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import psutil

from holdfast.adapters.local.environment import MARK
from holdfast.adapters.local.folder import LaunchFolder
from holdfast.errors import LauncherUnreachable

LIMIT_S: Final = 10.0
"""For processes to go once they are killed. Smaller: a busy machine looks unreachable. Bigger: a look hangs on one
that hangs in the kernel."""
PAUSE_S: Final = 0.02


def sweep(folder: LaunchFolder) -> None:
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
