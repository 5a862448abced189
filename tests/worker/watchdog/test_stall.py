"""Stall detection, from the steps of the ranks only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

import pytest
from holdfast_worker.protocol.policies import MaxStall, StallDetection
from holdfast_worker.watchdog.heartbeat import Heartbeat, Phase
from holdfast_worker.watchdog.stall import (
    FIRST_STEP_LIMIT_S,
    LONGEST_FACTOR,
    MEDIAN_FACTOR,
    MIN_LIMIT_S,
    PARTIAL_VIEW_FACTOR,
    Stall,
    StallDetector,
    has_progressed,
)
from hypothesis import given
from hypothesis import strategies as st

AUTO = MaxStall(StallDetection.AUTO, 0)
LOOK_S = 1.0


class Run:
    """Ranks with the same steps, and a stall detector that polls them every second."""

    def __init__(self, max_stall: MaxStall = AUTO, *, is_whole: bool = True) -> None:
        self.detector = StallDetector(max_stall)
        self.is_whole = is_whole
        self.now_s = 1000.0
        self.heartbeats: list[Heartbeat] = []
        self.stall: Stall | None = None

    def set_heartbeats(self, *heartbeats: Heartbeat) -> None:
        """Set the heartbeats of the ranks."""
        self.heartbeats = list(heartbeats)

    def wait(self, for_s: float) -> float:
        """Advance the time until a stall is detected, and return the passed time."""
        began_s = self.now_s
        while self.now_s < began_s + for_s:
            self.now_s += LOOK_S
            self.stall = self.detector.check(self.now_s, self.heartbeats, is_whole=self.is_whole)
            if self.stall:
                break
        return self.now_s - began_s

    def step(self, takes_s: Iterable[float], ranks: int = 2) -> None:
        """Make consecutive steps of the given durations."""
        made = self.heartbeats[0].steps_here if self.heartbeats else 0
        for number, took_s in enumerate(takes_s, made + 1):
            self.wait(took_s)
            assert self.stall is None
            self.set_heartbeats(*(stepping(rank, number, self.now_s) for rank in range(ranks)))


def stepping(
    rank: int, steps: int, since_s: float, *, phase: Phase = Phase.STEPPING, waits: bool = False
) -> Heartbeat:
    return Heartbeat(
        rank=rank, phase=phase, is_waiting=waits, step=steps, steps_here=steps, since_s=since_s
    )


def test_stepping_ranks_never_stall() -> None:
    run = Run()

    run.step([MIN_LIMIT_S - 10] * 20)

    assert run.stall is None


def test_stall_is_detected_15_min_after_the_last_progress() -> None:
    run = Run()
    run.step([1.0] * 10)

    waited_s = run.wait(2 * MIN_LIMIT_S)

    assert run.stall == Stall(run.stall.for_s if run.stall else 0, 10)
    assert MIN_LIMIT_S < waited_s <= MIN_LIMIT_S + 2 * LOOK_S


@pytest.mark.parametrize("usual_s", [100.0, 400.0])
def test_long_steps_have_a_longer_limit(usual_s: float) -> None:
    run = Run()
    run.step([usual_s] * 5)

    waited_s = run.wait(1e6)

    assert MEDIAN_FACTOR * usual_s <= waited_s <= MEDIAN_FACTOR * (usual_s + LOOK_S) + 2 * LOOK_S


def test_long_completed_step_raises_the_limit() -> None:
    run = Run()
    run.step([1.0] * 10)
    run.step([800.0])

    waited_s = run.wait(1e6)

    assert LONGEST_FACTOR * 800 <= waited_s <= LONGEST_FACTOR * 801 + 2 * LOOK_S


def test_hour_long_first_step_does_not_raise_the_limit() -> None:
    run = Run()
    run.set_heartbeats(stepping(0, 0, run.now_s, phase=Phase.LOADING))

    run.step([FIRST_STEP_LIMIT_S - 10, 1.0, 1.0])
    waited_s = run.wait(1e6)

    assert waited_s <= MIN_LIMIT_S + 2 * LOOK_S


def test_steps_of_earlier_attempts_do_not_count() -> None:
    run = Run(MaxStall(StallDetection.SECONDS, 20))
    run.set_heartbeats(Heartbeat(rank=0, phase=Phase.LOADING, step=1200, since_s=run.now_s))

    waited_s = run.wait(1e6)

    assert run.stall
    assert run.stall.step == 1200
    assert waited_s > FIRST_STEP_LIMIT_S


def test_given_limit_holds_after_the_first_step() -> None:
    run = Run(MaxStall(StallDetection.SECONDS, 20))
    run.step([15.0] * 5)

    waited_s = run.wait(1e6)

    assert 20 < waited_s <= 20 + 2 * LOOK_S


def test_disabled_stall_detection_reports_no_stall() -> None:
    run = Run(MaxStall(StallDetection.OFF, 0))
    run.step([1.0] * 5)

    run.wait(10 * FIRST_STEP_LIMIT_S)

    assert run.stall is None


@pytest.mark.parametrize("phase", [Phase.ABSENT, Phase.STARTING, Phase.PREPARING, Phase.FINISHED])
def test_script_outside_its_loop_never_stalls(phase: Phase) -> None:
    run = Run()
    run.set_heartbeats(*(stepping(rank, 5, run.now_s, phase=phase) for rank in (0, 1)))

    run.wait(10 * FIRST_STEP_LIMIT_S)

    assert run.stall is None


def test_wait_for_a_rank_outside_its_loop_is_limited() -> None:
    run = Run()
    run.set_heartbeats(
        stepping(0, 5, run.now_s, phase=Phase.FINISHED),
        stepping(1, 5, run.now_s, waits=True),
    )

    run.wait(10 * FIRST_STEP_LIMIT_S)

    assert run.stall


def test_one_live_rank_prevents_a_stall() -> None:
    run = Run()
    run.step([1.0] * 5)
    for _ in range(20):
        run.wait(MIN_LIMIT_S / 2)
        run.set_heartbeats(stepping(0, 5, run.now_s), stepping(1, 5, 1005.0, waits=True))

    assert run.stall is None


def test_partial_view_of_waiting_ranks_extends_the_limit() -> None:
    apart, whole = Run(is_whole=False), Run()
    for run in (apart, whole):
        run.set_heartbeats(*(stepping(rank, 5, run.now_s, waits=True) for rank in (0, 1)))

    apart_s, whole_s = (run.wait(1e6) for run in (apart, whole))

    assert whole_s <= MIN_LIMIT_S + 2 * LOOK_S
    assert apart_s >= PARTIAL_VIEW_FACTOR * MIN_LIMIT_S


def test_partial_view_still_detects_a_local_hang() -> None:
    run = Run(is_whole=False)
    run.set_heartbeats(stepping(0, 5, run.now_s, waits=True), stepping(1, 5, run.now_s))

    waited_s = run.wait(1e6)

    assert waited_s <= MIN_LIMIT_S + 2 * LOOK_S


def test_suspended_machine_reports_no_early_stall() -> None:
    run = Run()
    run.step([1.0] * 5)
    run.now_s += 10 * FIRST_STEP_LIMIT_S

    run.wait(MIN_LIMIT_S - 10)
    is_blamed_early = run.stall is not None
    run.wait(20)

    assert not is_blamed_early
    assert run.stall


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (stepping(1, 5, 1000.0), False),
        (stepping(1, 5, 1000.4), False),  # The delay of a message.
        (stepping(1, 5, 1005.0), True),
        (stepping(1, 6, 1000.0), True),
        (stepping(1, 5, 1000.0, waits=True), True),
        (stepping(1, 5, 1000.0, phase=Phase.LOADING), True),
        (stepping(2, 5, 1000.0), False),  # A rank without an earlier heartbeat.
    ],
)
def test_progress_during_inspection_is_detected(after: Heartbeat, expected: bool) -> None:
    before = [stepping(rank, 5, 1000.0) for rank in (0, 1)]

    assert has_progressed(before, [before[0], after]) is expected


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.integers(0, 10**6))
def test_limit_follows_its_documented_formula(takes_s: Sequence[int], restored: int) -> None:
    """For any durations, of which the first does not count, and any restored step."""
    stopwatch = StallDetector(AUTO)
    now_s = 1000.0
    for made, took_s in enumerate([1, *takes_s], 1):
        before = Heartbeat(
            rank=0,
            phase=Phase.STEPPING,
            step=restored + made - 1,
            steps_here=made - 1,
            since_s=now_s,
        )
        for _ in range(took_s // 5):
            stopwatch.check(now_s := now_s + 5, [before], is_whole=True)
        now_s += took_s % 5
        after = replace(before, step=restored + made, steps_here=made, since_s=now_s)
        stopwatch.check(now_s, [after], is_whole=True)

    promised_s = max(MIN_LIMIT_S, MEDIAN_FACTOR * median(takes_s), LONGEST_FACTOR * max(takes_s))
    assert stopwatch.limit_s([after], is_whole=True) == pytest.approx(promised_s)
