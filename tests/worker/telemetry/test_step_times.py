"""Stalled steps: found by the usual step, and not part of training."""

from __future__ import annotations

import pytest
from holdfast_worker.telemetry.step_times import MIN_STEPS, StalledTime, StepTimes

MS = 1_000_000
S = 1000 * MS


def times(*steps_ns: tuple[int, int]) -> StepTimes:
    """Step times with these steps and the parts that waited for data."""
    found = StepTimes()
    for step in steps_ns:
        found.add(*step)
    return found


USUAL = ((100 * MS, 10 * MS),) * MIN_STEPS


def test_stall_is_the_time_beyond_the_usual_step() -> None:
    assert times(*USUAL, (30 * S, 10 * MS)).take() == StalledTime(0, 30 * S - 100 * MS)


def test_stall_of_the_loader_is_known_as_such() -> None:
    stalled = times(*USUAL, (30 * S, 20 * S)).take()

    assert stalled.loading_ns == 20 * S - 10 * MS
    assert stalled.total_ns == 30 * S - 100 * MS


@pytest.mark.parametrize("step_ns", [900 * MS, 1050 * MS])
def test_uneven_steps_are_no_stalls(step_ns: int) -> None:
    assert times(*USUAL, (step_ns, 10 * MS)).take().total_ns == 0


def test_slow_first_step_is_a_stall_once_the_usual_step_is_known() -> None:
    found = times((60 * S, 0), *USUAL[1:-1])

    assert found.take().total_ns == 0
    assert times((60 * S, 0), *USUAL).take().total_ns == 60 * S - 100 * MS


def test_steps_of_an_earlier_reading_are_not_judged_again() -> None:
    found = times((60 * S, 0), *USUAL[:2])
    found.take()

    for step in USUAL:
        found.add(*step)

    assert found.take().total_ns == 0


def test_lasting_change_becomes_usual() -> None:
    found = times(*USUAL)

    for _ in range(100):
        found.add(5 * S, 0)
        found.take()
    found.add(5 * S, 0)

    assert found.take().total_ns == 0
