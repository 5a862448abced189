"""When to save, and what to do between two steps: pure decisions."""

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
        (0.0, 0.1, 2, 1),  # It costs nothing.
        (0.3, 8.0, 2, 1),  # sqrt(2 * 0.3 s * 7200 s) = 66 s
        (1.0, 5.0, 2, 2),  # 120 s
        (5.0, 30.0, 2, 5),  # 268 s: of 3 and 5 minutes, the one that wastes less.
        (30.0, 60.0, 2, 10),  # 657 s
        (30.0, 60.0, 24, 45),  # 2277 s: of 30 and 45 minutes.
        (1.0, 61.0, 2, 2),  # No sooner than the last upload is through.
        (0.1, 900.0, 2, 15),
        (0.1, 10_000.0, 2, 120),  # Nothing is long enough.
        (600.0, 1.0, 240, 120),  # The optimum would be nine hours.
        (600.0, 1.0, 1 / 60, 1),  # Nodes that hold for a minute.
    ],
)
def test_the_interval_is_the_rung_that_wastes_least(
    stall_s: float, durable_s: float, between_h: float, minutes: int
) -> None:
    assert optimal_interval(stall_s, durable_s, between_h * HOUR_S) == minutes * 60


@given(STALLS_S, DURABLES_S, BETWEEN_S)
def test_no_rung_that_is_long_enough_wastes_less(
    stall_s: float, durable_s: float, between_s: float
) -> None:
    chosen = optimal_interval(stall_s, durable_s, between_s)

    assert chosen in INTERVALS_S
    assert chosen >= min(durable_s, INTERVALS_S[-1])
    allowed = [rung for rung in INTERVALS_S if rung >= durable_s] or [INTERVALS_S[-1]]
    least = min(wasted_share(rung, stall_s, between_s) for rung in allowed)
    assert wasted_share(chosen, stall_s, between_s) == least


@given(STALLS_S, STALLS_S, BETWEEN_S)
def test_costlier_saves_are_never_more_frequent(one_s: float, other_s: float, b_s: float) -> None:
    cheap, dear = sorted((one_s, other_s))

    assert optimal_interval(cheap, 0, b_s) <= optimal_interval(dear, 0, b_s)


@given(st.floats(0.001, 60), BETWEEN_S, BETWEEN_S)
def test_the_shorter_nodes_last_the_more_often_is_saved(
    stall_s: float, one_s: float, other_s: float
) -> None:
    short, long = sorted((one_s, other_s))

    assert optimal_interval(stall_s, 0, short) <= optimal_interval(stall_s, 0, long)


@given(st.floats(0.01, 60), st.floats(HOUR_S, 200 * HOUR_S))
def test_the_rung_is_a_neighbour_of_youngs_optimum(stall_s: float, between_s: float) -> None:
    best_s = math.sqrt(2 * stall_s * between_s)
    held_s = min(max(best_s, INTERVALS_S[0]), INTERVALS_S[-1])
    # Daly's exact optimum lies up to the stall itself below the first-order one.
    lower = max(rung for rung in INTERVALS_S if rung <= max(held_s - stall_s, INTERVALS_S[0]))
    upper = min(rung for rung in INTERVALS_S if rung >= held_s)

    assert lower <= optimal_interval(stall_s, 0, between_s) <= upper


@pytest.mark.parametrize(
    ("interval_s", "stall_s", "between_s"),
    [(60, 1, 600), (600, 20, 7200), (1800, 300, 3600), (300, 0, 900)],
)
def test_wasted_share_matches_simulated_failures(
    interval_s: float, stall_s: float, between_s: float
) -> None:
    """The formula beside the thing itself: intervals that are begun again until one is through."""
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
    afresh = optimal_interval(stall_s, durable_s, between_s)

    assert chosen in {present_s, afresh}
    assert wasted_share(chosen, stall_s, between_s) <= HYSTERESIS * wasted_share(
        afresh, stall_s, between_s
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
        ("15m", 1, 59, 1, False),  # One that failed is tried again soon,
        ("15m", 1, 60, 1, True),
        ("15m", 1, 119, 2, False),  # and then not so soon,
        ("15m", 1, 120, 2, True),
        ("15m", 1, 900, 9, True),  # but no later than it would be anyway,
        ("500 steps", 500, 1, 9, True),
        ("500 steps", 1, 60, 1, True),
        ("auto", 0, 1e6, 1, False),  # and not the same step.
    ],
)
def test_save_is_due_according_to_the_cadence(
    cadence: str, steps_since: int, seconds_since: float, failures: int, due: bool
) -> None:
    assert is_due(Cadence.parse(cadence), steps_since, seconds_since, 120, failures) is due


def test_a_store_that_fails_for_ever_is_asked_ever_more_seldom() -> None:
    waits = [retry_s(failures) for failures in range(1, 200)]

    assert waits == sorted(waits)
    assert math.isfinite(waits[-1])


LEAVING = StepVote(is_leaving=True, left_s=120)


@pytest.mark.parametrize(
    ("votes", "is_saved", "verdict"),
    [
        (StepVote(), False, StepDecision.CONTINUE),
        (StepVote(is_due=True), False, StepDecision.SAVE),
        (StepVote(is_due=True, is_busy=True), False, StepDecision.CONTINUE),
        (LEAVING, False, StepDecision.SAVE_AND_LEAVE),  # Nothing measured: try.
        (LEAVING, True, StepDecision.LEAVE),
        (StepVote(is_leaving=True, left_s=120, durable_s=83), False, StepDecision.SAVE_AND_LEAVE),
        (StepVote(is_leaving=True, left_s=120, durable_s=84), False, StepDecision.LEAVE),  # 0.7 of it
        (StepVote(is_leaving=True, left_s=30, durable_s=20), False, StepDecision.SAVE_AND_LEAVE),
        (StepVote(is_leaving=True, left_s=30, durable_s=21), False, StepDecision.LEAVE),
        (StepVote(is_leaving=True, left_s=None, durable_s=20), False, StepDecision.SAVE_AND_LEAVE),
        (StepVote(is_leaving=True, left_s=None, durable_s=21), False, StepDecision.LEAVE),
        (StepVote(is_leaving=True, left_s=0, durable_s=0.1), False, StepDecision.LEAVE),
        (StepVote(is_leaving=True, left_s=0), True, StepDecision.LEAVE),
        # One that is under way comes first, whatever is left and wherever it was taken.
        (StepVote(is_leaving=True, left_s=30, durable_s=1, is_busy=True), False, FINISH := StepDecision.FINISH_AND_LEAVE),
        (StepVote(is_leaving=True, left_s=1, durable_s=99, is_busy=True), False, FINISH),
        (StepVote(is_leaving=True, left_s=30, durable_s=1, is_busy=True), True, FINISH),
        (StepVote(is_leaving=True, is_fenced=True, is_busy=True), False, StepDecision.STOP_FENCED),
        (StepVote(is_due=True, is_fenced=True), False, StepDecision.STOP_FENCED),
    ],
)  # fmt: skip
def test_ranks_decide_by_the_votes_alone(
    votes: StepVote, is_saved: bool, verdict: StepDecision
) -> None:
    assert decide(votes, is_saved=is_saved) is verdict


@pytest.mark.parametrize(
    ("votes", "verdict"),
    [
        (StepVote(), StepDecision.STOP_UNSAVED),
        (StepVote(is_due=True), StepDecision.STOP_UNSAVED),
        (LEAVING, StepDecision.SAVE_AND_LEAVE),  # It costs nothing to try once more.
        (StepVote(is_fenced=True), StepDecision.STOP_FENCED),
    ],
)
def test_failed_saves_stop_a_run_that_has_no_reason_to_exit(
    votes: StepVote, verdict: StepDecision
) -> None:
    assert decide(votes, is_saved=False, has_save_failed=True) is verdict


def test_of_many_votes_the_most_urgent_counts() -> None:
    calm = StepVote(durable_s=3.0)
    hurried = StepVote(is_leaving=True, is_busy=True, left_s=20.0)
    more_hurried = StepVote(is_leaving=True, left_s=10.0, is_broken=True)

    columns = zip(*(v.numbers() for v in (calm, hurried, more_hurried)), strict=True)
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
def test_a_vote_survives_its_columns(vote: StepVote) -> None:
    numbers = vote.numbers()

    assert StepVote.from_numbers(numbers) == vote
    assert min(numbers) >= NO_VALUE


def test_ranks_with_different_gradients_stop_before_a_due_save() -> None:
    votes = StepVote(norm=2.0, least_norm=1.0, is_due=True)

    assert decide(votes, is_saved=False) is StepDecision.STOP_DESYNC
