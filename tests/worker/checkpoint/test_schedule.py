"""Pure decisions: when to save, and what to do between two steps."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from holdfast_worker.checkpoint.schedule import (
    HYSTERESIS,
    INTERVALS_S,
    is_due,
    optimal_interval,
    retry_s,
    wasted_share,
)
from holdfast_worker.distributed.step_vote import NO_VALUE, StepDecision, StepVote, decide
from holdfast_worker.protocol.policies import Cadence
from hypothesis import given
from hypothesis import strategies as st

HOUR_S = 3600.0
STALLS_S = st.floats(0, 600)
DURABLES_S = st.floats(0, 20_000)
BETWEEN_S = st.floats(60, 30 * 24 * HOUR_S)


@pytest.mark.parametrize(
    ("stall_s", "durable_s", "between_h", "minutes"),
    [
        (0.0, 0.1, 2, 1),  # Saves are free.
        (0.3, 8.0, 2, 1),  # sqrt(2 * 0.3 s * 7200 s) = 66 s
        (1.0, 5.0, 2, 2),  # 120 s
        (5.0, 30.0, 2, 5),  # 268 s: 5 minutes waste less than 3.
        (30.0, 60.0, 2, 10),  # 657 s
        (30.0, 60.0, 24, 45),  # 2277 s: of 30 and 45 minutes.
        (1.0, 61.0, 2, 2),  # Not before the last upload has ended.
        (0.1, 900.0, 2, 15),
        (0.1, 10_000.0, 2, 120),  # No interval is long enough.
        (600.0, 1.0, 240, 120),  # The optimum would be nine hours.
        (600.0, 1.0, 1 / 60, 1),  # Nodes that last for a minute.
    ],
)
def test_interval_with_the_least_waste_is_chosen(
    stall_s: float, durable_s: float, between_h: float, minutes: int
) -> None:
    assert optimal_interval(stall_s, durable_s, between_h * HOUR_S) == minutes * 60


@given(STALLS_S, DURABLES_S, BETWEEN_S)
def test_no_other_allowed_interval_wastes_less(
    stall_s: float, durable_s: float, between_s: float
) -> None:
    chosen = optimal_interval(stall_s, durable_s, between_s)

    assert chosen in INTERVALS_S
    assert chosen >= min(durable_s, INTERVALS_S[-1])
    allowed = [interval for interval in INTERVALS_S if interval >= durable_s] or [INTERVALS_S[-1]]
    least = min(wasted_share(interval, stall_s, between_s) for interval in allowed)
    assert wasted_share(chosen, stall_s, between_s) == least


@given(STALLS_S, STALLS_S, BETWEEN_S)
def test_costlier_saves_are_never_more_frequent(one_s: float, other_s: float, b_s: float) -> None:
    cheap, expensive = sorted((one_s, other_s))

    assert optimal_interval(cheap, 0, b_s) <= optimal_interval(expensive, 0, b_s)


@given(st.floats(0.001, 60), BETWEEN_S, BETWEEN_S)
def test_shorter_node_lifetime_shortens_the_interval(
    stall_s: float, one_s: float, other_s: float
) -> None:
    short, long = sorted((one_s, other_s))

    assert optimal_interval(stall_s, 0, short) <= optimal_interval(stall_s, 0, long)


@given(st.floats(0.01, 60), st.floats(HOUR_S, 200 * HOUR_S))
def test_interval_is_adjacent_to_youngs_optimum(stall_s: float, between_s: float) -> None:
    best_s = math.sqrt(2 * stall_s * between_s)
    held_s = min(max(best_s, INTERVALS_S[0]), INTERVALS_S[-1])
    # Daly's exact optimum is below the first-order one by up to the stall.
    lower = max(
        interval for interval in INTERVALS_S if interval <= max(held_s - stall_s, INTERVALS_S[0])
    )
    upper = min(interval for interval in INTERVALS_S if interval >= held_s)

    assert lower <= optimal_interval(stall_s, 0, between_s) <= upper


@pytest.mark.parametrize(
    ("interval_s", "stall_s", "between_s"),
    [(60, 1, 600), (600, 20, 7200), (1800, 300, 3600), (300, 0, 900)],
)
def test_wasted_share_matches_simulated_failures(
    interval_s: float, stall_s: float, between_s: float
) -> None:
    """The formula is compared with a simulation that restarts each interval until it completes."""
    chance = random.Random(1974)
    useful_s = spent_s = 0.0
    while spent_s < 5000 * between_s:
        until_failure_s = chance.expovariate(1 / between_s)
        rounds = until_failure_s // (interval_s + stall_s)
        useful_s += rounds * interval_s
        spent_s += until_failure_s

    assert wasted_share(interval_s, stall_s, between_s) == pytest.approx(
        1 - useful_s / spent_s, rel=0.05, abs=0.01
    )


@given(st.floats(0.01, 60), BETWEEN_S, st.lists(st.floats(0.9, 1.1), min_size=2, max_size=40))
def test_small_differences_change_the_interval_once_at_most(
    stall_s: float, between_s: float, noise: list[float]
) -> None:
    chosen: list[int] = []
    for factor in noise:
        chosen.append(
            optimal_interval(factor * stall_s, 0, between_s, chosen[-1] if chosen else None)
        )

    changes = sum(one != other for one, other in itertools.pairwise(chosen))
    assert changes <= 1


@given(STALLS_S, DURABLES_S, BETWEEN_S, st.sampled_from(INTERVALS_S))
def test_current_interval_is_kept_only_while_nearly_optimal(
    stall_s: float, durable_s: float, between_s: float, present_s: int
) -> None:
    chosen = optimal_interval(stall_s, durable_s, between_s, present_s)
    recomputed = optimal_interval(stall_s, durable_s, between_s)

    assert chosen in {present_s, recomputed}
    assert wasted_share(chosen, stall_s, between_s) <= HYSTERESIS * wasted_share(
        recomputed, stall_s, between_s
    )
    assert chosen >= min(durable_s, INTERVALS_S[-1])


@pytest.mark.parametrize(
    ("cadence", "steps_since", "seconds_since", "failures", "due"),
    [
        ("500 steps", 499, 1e6, 0, False),
        ("500 steps", 500, 0, 0, True),
        ("15m", 10**6, 899, 0, False),
        ("15m", 1, 900, 0, True),
        ("15m", 0, 900, 0, False),
        ("auto", 5, 119, 0, False),
        ("auto", 5, 121, 0, True),
        ("15m", 1, 59, 1, False),  # A failed save is retried soon,
        ("15m", 1, 60, 1, True),
        ("15m", 1, 119, 2, False),  # then less soon,
        ("15m", 1, 120, 2, True),
        ("15m", 1, 900, 9, True),  # but no later than the next regular save,
        ("500 steps", 500, 1, 9, True),
        ("500 steps", 1, 60, 1, True),
        ("auto", 0, 1e6, 1, False),  # and not at the same step.
    ],
)
def test_save_is_due_according_to_the_cadence(
    cadence: str, steps_since: int, seconds_since: float, failures: int, due: bool
) -> None:
    assert is_due(Cadence.parse(cadence), steps_since, seconds_since, 120, failures) is due


def test_retries_of_a_failing_store_back_off() -> None:
    waits = [retry_s(failures) for failures in range(1, 200)]

    assert waits == sorted(waits)
    assert math.isfinite(waits[-1])


LEAVING = StepVote(is_leaving=True, left_s=120)


@pytest.mark.parametrize(
    ("votes", "is_saved", "decision"),
    [
        (StepVote(), False, StepDecision.CONTINUE),
        (StepVote(is_due=True), False, StepDecision.SAVE),
        (StepVote(is_due=True, is_busy=True), False, StepDecision.CONTINUE),
        (LEAVING, False, StepDecision.SAVE_AND_LEAVE),  # No measurement: try.
        (LEAVING, True, StepDecision.LEAVE),
        (StepVote(is_leaving=True, left_s=120, durable_s=83), False, StepDecision.SAVE_AND_LEAVE),
        (StepVote(is_leaving=True, left_s=120, durable_s=84), False, StepDecision.LEAVE),  # 0.7 of the time
        (StepVote(is_leaving=True, left_s=30, durable_s=20), False, StepDecision.SAVE_AND_LEAVE),
        (StepVote(is_leaving=True, left_s=30, durable_s=21), False, StepDecision.LEAVE),
        (StepVote(is_leaving=True, left_s=None, durable_s=20), False, StepDecision.SAVE_AND_LEAVE),
        (StepVote(is_leaving=True, left_s=None, durable_s=21), False, StepDecision.LEAVE),
        (StepVote(is_leaving=True, left_s=0, durable_s=0.1), False, StepDecision.LEAVE),
        (StepVote(is_leaving=True, left_s=0), True, StepDecision.LEAVE),
        # A save in progress is finished first, with any time left and at any step.
        (StepVote(is_leaving=True, left_s=30, durable_s=1, is_busy=True), False, FINISH := StepDecision.FINISH_AND_LEAVE),
        (StepVote(is_leaving=True, left_s=1, durable_s=99, is_busy=True), False, FINISH),
        (StepVote(is_leaving=True, left_s=30, durable_s=1, is_busy=True), True, FINISH),
        (StepVote(is_leaving=True, is_fenced=True, is_busy=True), False, StepDecision.STOP_FENCED),
        (StepVote(is_due=True, is_fenced=True), False, StepDecision.STOP_FENCED),
    ],
)  # fmt: skip
def test_decision_depends_only_on_the_votes(
    votes: StepVote, is_saved: bool, decision: StepDecision
) -> None:
    assert decide(votes, is_saved=is_saved) is decision


@pytest.mark.parametrize(
    ("votes", "decision"),
    [
        (StepVote(), StepDecision.STOP_UNSAVED),
        (StepVote(is_due=True), StepDecision.STOP_UNSAVED),
        (LEAVING, StepDecision.SAVE_AND_LEAVE),  # Another try has no cost.
        (StepVote(is_fenced=True), StepDecision.STOP_FENCED),
    ],
)
def test_failed_saves_stop_a_run_that_has_no_reason_to_exit(
    votes: StepVote, decision: StepDecision
) -> None:
    assert decide(votes, is_saved=False, has_save_failed=True) is decision


def test_most_urgent_of_many_votes_counts() -> None:
    idle = StepVote(durable_s=3.0)
    urgent = StepVote(is_leaving=True, is_busy=True, left_s=20.0)
    more_urgent = StepVote(is_leaving=True, left_s=10.0, is_broken=True)

    columns = zip(*(v.numbers() for v in (idle, urgent, more_urgent)), strict=True)
    together = StepVote.from_numbers([max(column) for column in columns])

    assert together == StepVote(
        is_leaving=True, is_busy=True, is_broken=True, left_s=10.0, durable_s=3.0
    )


@given(
    st.builds(
        StepVote,
        is_leaving=st.booleans(),
        is_due=st.booleans(),
        is_busy=st.booleans(),
        is_broken=st.booleans(),
        is_fenced=st.booleans(),
        left_s=st.none() | st.floats(0, 1e6),
        durable_s=st.none() | st.floats(0, 1e6),
        norm=st.none() | st.floats(0, 1e300),
        least_norm=st.none() | st.floats(0, 1e300),
        weight=st.none() | st.floats(0, 1e300),
        least_weight=st.none() | st.floats(0, 1e300),
    )
)
def test_vote_survives_a_round_trip(vote: StepVote) -> None:
    numbers = vote.numbers()

    assert StepVote.from_numbers(numbers) == vote
    assert min(numbers) >= NO_VALUE


def test_ranks_with_different_gradients_stop_before_a_due_save() -> None:
    votes = StepVote(norm=2.0, least_norm=1.0, is_due=True)

    assert decide(votes, is_saved=False) is StepDecision.STOP_DESYNC
