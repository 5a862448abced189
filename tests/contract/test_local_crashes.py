"""A submit killed at any line leaves at most one launch, and a retry completes it."""

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


def test_submit_killed_at_any_line_is_completed_by_a_retry(machine: LocalBackend) -> None:
    machine.kind = ProgramKind.SUCCEEDS
    never_started, started = 0, []

    for line in count(1):
        key = f"job{len(started)}-1"
        launch = machine.launch(key)
        if not _is_killed_at(
            partial(submit, machine.folder(key), launch, machine.market, machine.home, None),
            line,
        ):
            break
        if do(machine.launcher.observe(key)).status is LaunchStatus.ABSENT:
            never_started += (
                1  # The next submit, killed a line later, finds the remains of this one.
            )
        else:
            started.append(key)
    for key in started:
        do(machine.launcher.submit(machine.launch(key)))
        machine.until(key, is_ended)

    assert never_started > 20
    assert len(started) > 5
    assert [machine.runs(key) for key in started] == [1] * len(started)


def _is_killed_at(work: Callable[[], None], number: int) -> bool:
    """Run `work` in a process, killed at the `number`-th new line; False if it ends earlier."""
    pid = os.fork()
    if pid == 0:
        try:
            sys.settrace(_KillAtLine(number))
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


class _KillAtLine:
    """A tracer that kills its process at the n-th distinct line of the local launcher."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.seen: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> _KillAtLine | None:
        location = (frame.f_code.co_filename, frame.f_lineno)
        if not location[0].startswith(OURS):
            return None
        if event == "line" and location not in self.seen:
            self.seen.add(location)
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self
