"""When to save, and what to do between two steps: pure decisions."""

from __future__ import annotations

import pytest
from holdfast_worker.boundary import Verdict, Vote, decide
from holdfast_worker.cadence import Cost, interval_s, is_due
from holdfast_worker.wire import Cadence

QUICK, DEAR, SLOW = Cost(0.001, 0.1), Cost(1.0, 5.0), Cost(0.5, 900.0)


@pytest.mark.parametrize(
    ("cost", "seconds"),
    [
        (None, 30),  # Nothing measured yet.
        (QUICK, 10),  # The optimum would be 4 s.
        (DEAR, 120),  # sqrt(2 * 1 s * 7200 s)
        (SLOW, 900),  # No sooner than the last upload is through.
    ],
)
def test_the_interval_wastes_least_within_bounds(cost: Cost | None, seconds: float) -> None:
    assert interval_s(cost) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("cadence", "steps_since", "seconds_since", "due"),
    [
        ("500 steps", 499, 1e6, False),
        ("500 steps", 500, 0, True),
        ("15m", 10**6, 899, False),
        ("15m", 1, 900, True),
        ("15m", 0, 900, False),
        ("auto", 5, 119, False),
        ("auto", 5, 121, True),
    ],
)
def test_a_save_is_due_when_the_cadence_says_so(
    cadence: str, steps_since: int, seconds_since: float, due: bool
) -> None:
    assert is_due(Cadence.parse(cadence), steps_since, seconds_since, DEAR) is due


@pytest.mark.parametrize(
    ("votes", "is_saved", "verdict"),
    [
        (Vote(), False, Verdict.GO_ON),
        (Vote(is_due=True), False, Verdict.SAVE),
        (Vote(is_due=True, is_busy=True), False, Verdict.GO_ON),
        (Vote(is_leaving=True, left_s=120), False, Verdict.SAVE_AND_LEAVE),
        (Vote(is_leaving=True, left_s=120), True, Verdict.LEAVE),
        (Vote(is_leaving=True, left_s=30, durable_s=20), False, Verdict.SAVE_AND_LEAVE),
        (Vote(is_leaving=True, left_s=30, durable_s=21), False, Verdict.LEAVE),
        (Vote(is_leaving=True, left_s=30, durable_s=11, is_busy=True), False, Verdict.LEAVE),
        (Vote(is_leaving=True, left_s=None, durable_s=20), False, Verdict.SAVE_AND_LEAVE),
        (Vote(is_leaving=True, left_s=0, durable_s=0.1), False, Verdict.LEAVE),
    ],
)
def test_ranks_decide_by_the_votes_alone(votes: Vote, is_saved: bool, verdict: Verdict) -> None:
    assert decide(votes, is_saved=is_saved) is verdict


def test_of_many_votes_the_most_urgent_counts() -> None:
    calm = Vote(durable_s=3.0)
    hurried = Vote(is_leaving=True, is_busy=True, left_s=20.0)
    more_hurried = Vote(is_leaving=True, left_s=10.0, is_broken=True)

    columns = zip(*(v.numbers() for v in (calm, hurried, more_hurried)), strict=True)
    together = Vote.of([max(column) for column in columns])

    assert together == Vote(
        is_leaving=True, is_busy=True, is_broken=True, left_s=10.0, durable_s=3.0
    )
