"""A submit that is killed, at every line of its way: the launch is started once, or not at all and then once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType

from contract.launcher_backends import LocalBackend, ProgramKind, do, is_ended
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.launchers import local
from holdfast.launchers.local.submission import submit

OURS = str(Path(local.__file__).parent)


def test_a_submit_killed_at_any_line_is_made_good_by_the_next(machine: LocalBackend) -> None:
    machine.kind = ProgramKind.ENDS
    fruitless, begun = 0, []

    for line in count(1):
        key = f"job{len(begun)}-1"
        launch = machine.launch(key)
        if not _killed(
            partial(submit, machine.folder(key), launch, machine.climate, machine.home, None),
            line,
        ):
            break
        if do(machine.launcher.observe(key)).status is LaunchStatus.ABSENT:
            fruitless += 1  # The next one, killed a line later, finds what this one has left.
        else:
            begun.append(key)
    for key in begun:
        do(machine.launcher.submit(machine.launch(key)))
        machine.until(key, is_ended)

    assert fruitless > 20
    assert len(begun) > 5
    assert [machine.runs(key) for key in begun] == [1] * len(begun)


def _killed(work: Callable[[], None], number: int) -> bool:
    """True when a process that does `work` could be killed at the `number`-th new line of ours that it reached."""
    pid = os.fork()
    if pid == 0:
        try:
            sys.settrace(_Fuse(number))
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


class _Fuse:
    """A tracer that kills its process at the n-th line of the local launcher that it has not seen before."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.seen: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> _Fuse | None:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if not place[0].startswith(OURS):
            return None
        if event == "line" and place not in self.seen:
            self.seen.add(place)
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self
