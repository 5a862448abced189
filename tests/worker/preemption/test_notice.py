"""The termination notice of one rank: when it ends the process, and the remaining time."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta
from typing import Any

import pytest
from holdfast_worker.clock import now
from holdfast_worker.distributed.step_vote import UNKNOWN_LEFT_S
from holdfast_worker.preemption import notice as module
from holdfast_worker.preemption.notice import Notice
from holdfast_worker.protocol.environment import Exit


class FakeRunDir:
    """A run directory with the deadline and the rebalance hint of the wrapper."""

    def __init__(self, deadline: datetime | None = None, *, hinted: bool = False) -> None:
        self._deadline, self._hinted = deadline, hinted

    def deadline(self) -> datetime | None:
        return self._deadline

    def is_hinted(self) -> bool:
        return self._hinted


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Signal handlers that a run would install in this process."""
    installed: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", installed.__setitem__)
    return installed


@pytest.fixture
def clock_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock of the notice, as the only element of a list."""
    seconds = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: seconds[0])
    return seconds


def received(run_dir: FakeRunDir | None) -> Notice:
    """A notice that a run received between two steps."""
    notice = Notice()
    notice.handle_sigterm(run_dir)  # type: ignore[arg-type]
    notice.install_handlers()
    notice.raise_()
    return notice


def test_notice_before_the_run_ends_the_process(handlers: dict[int, Any]) -> None:
    notice = Notice()
    notice.handle_sigterm(None)

    with pytest.raises(SystemExit) as exit_:
        handlers[signal.SIGTERM](signal.SIGTERM, None)

    assert exit_.value.code == Exit.PREEMPTED
    assert handlers[signal.SIGTERM] is signal.SIG_IGN


def test_notice_during_the_run_waits_for_the_step(handlers: dict[int, Any]) -> None:
    notice = Notice()
    notice.handle_sigterm(None)
    notice.install_handlers()

    handlers[signal.SIGTERM](signal.SIGTERM, None)
    is_raised = notice.is_raised
    notice.remove_handlers()

    assert is_raised
    with pytest.raises(SystemExit):
        handlers[signal.SIGTERM](signal.SIGTERM, None)


def test_announced_deadline_is_what_is_left(handlers: dict[int, Any]) -> None:
    notice = received(FakeRunDir(now() + timedelta(seconds=50)))

    assert 49 < notice.left_s() <= 50
    assert notice.announced_left_s() is not None
    assert received(FakeRunDir(now() - timedelta(seconds=5))).left_s() == 0


def test_time_without_a_deadline_runs_from_the_first_notice(
    handlers: dict[int, Any], clock_s: list[float]
) -> None:
    notice = received(FakeRunDir())
    at_first = notice.left_s()

    clock_s[0] += 7
    notice.raise_()
    repeated = notice.left_s()
    clock_s[0] += 10 * UNKNOWN_LEFT_S

    assert (at_first, repeated, notice.left_s()) == (UNKNOWN_LEFT_S, UNKNOWN_LEFT_S - 7, 0)
    assert notice.announced_left_s() is None


def test_hint_is_pending_until_a_save_begins(handlers: dict[int, Any]) -> None:
    hinted, plain = received(FakeRunDir(hinted=True)), received(FakeRunDir())
    before = hinted.has_pending_hint(), plain.has_pending_hint()

    for notice in (hinted, plain):
        notice.acknowledge_hint()

    assert before == (True, False)
    assert not hinted.has_pending_hint()


def test_save_before_a_hint_does_not_acknowledge_it(handlers: dict[int, Any]) -> None:
    notice = received(FakeRunDir())
    notice.acknowledge_hint()

    notice.handle_sigterm(FakeRunDir(hinted=True))  # type: ignore[arg-type]

    assert notice.has_pending_hint()
