"""All ranks compute one plan of an in-process recovery, or fall back to a start from a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast_worker.distributed.recovery_plan import (
    NotRecoverable,
    Place,
    RankPosition,
    plan_recovery,
)

NEW = RankPosition(place=Place.NEW)
EVERY = frozenset({0, 1, 2})


def numbers(*given: int) -> frozenset[int]:
    return frozenset(given)


def in_step(step: int, **given: Any) -> RankPosition:
    return RankPosition(place=Place.STEP, step=step, entry=10 * step, holds=EVERY, **given)


def in_boundary(step: int, **given: Any) -> RankPosition:
    return RankPosition(place=Place.BOUNDARY, step=step, entry=10 * step - 3, holds=EVERY, **given)


def test_new_rank_repeats_the_step_of_the_survivors() -> None:
    survivor = in_step(4, completed=numbers(40, 41), failed=numbers(42))

    plan = plan_recovery({0: survivor, 1: NEW, 2: survivor})

    assert (plan.source, plan.place, plan.step, plan.entry) == (0, Place.STEP, 4, 40)
    assert plan.results == {40: 0, 41: 0}
    assert plan.holders == {1: 0}


def test_result_is_handed_to_a_survivor_that_lacks_it() -> None:
    ahead = in_boundary(5, completed=numbers(44), failed=numbers(47))
    behind = in_step(4, completed=numbers(43), failed=numbers(44))

    plan = plan_recovery({0: behind, 1: ahead, 2: NEW})

    assert (plan.source, plan.restarts_boundary) == (1, True)
    assert plan.results == {44: 1}


def test_result_is_handed_to_a_survivor_that_has_not_begun() -> None:
    sender = in_step(4, completed=numbers(40), failed=numbers(41))
    receiver = in_step(4)

    plan = plan_recovery({0: sender, 1: receiver})

    assert plan.results == {40: 0}
    assert [position.lacks(40) for position in (sender, receiver)] == [False, True]


def test_boundary_begins_again_without_its_results() -> None:
    first = in_boundary(5, completed=numbers(47), failed=numbers(48))
    second = in_boundary(5, failed=numbers(47))

    plan = plan_recovery({0: first, 1: second, 2: NEW})

    assert plan.restarts_boundary
    assert plan.results == {}


def test_rank_in_the_boundary_follows_one_in_the_step() -> None:
    ahead = in_step(5, completed=numbers(49))
    behind = in_boundary(5, completed=numbers(48), failed=numbers(49))

    plan = plan_recovery({0: behind, 1: ahead, 2: NEW})

    assert (plan.source, plan.place) == (1, Place.STEP)
    assert plan.results == {49: 1}


def test_group_without_new_ranks_repeats_what_failed() -> None:
    changed = in_step(4, completed=numbers(40), failed=numbers(41), obstacle="a reason")

    plan = plan_recovery({0: changed, 1: changed})

    assert plan.results == {}
    assert plan.holders == {}


def test_source_is_a_survivor_without_an_obstacle() -> None:
    plan = plan_recovery({0: in_step(4, obstacle="a reason"), 1: in_step(4), 2: NEW})

    assert plan.source == 1


@pytest.mark.parametrize(
    ("positions", "reason"),
    [
        ([NEW, NEW], "no rank has survived"),
        ([RankPosition(place=Place.OUTSIDE), NEW], "rank 0 was outside of its training loop"),
        ([in_step(4, obstacle="a reason"), NEW], "a reason"),
        ([in_step(4, changed=numbers(41)), NEW], "has the result of collective 41"),
        (
            [in_boundary(5), in_step(4, failed=numbers(44)), NEW],
            "has the result of collective 44",
        ),
        (
            [RankPosition(place=Place.STEP, step=4, entry=40), NEW],
            "no rank has a copy of the state of rank 1",
        ),
    ],
)
def test_impossible_recovery_names_its_reason(positions: list[RankPosition], reason: str) -> None:
    with pytest.raises(NotRecoverable, match=reason):
        plan_recovery(dict(enumerate(positions)))


def test_position_survives_a_round_trip() -> None:
    position = in_step(4, completed=numbers(2, 1), changed=numbers(3), failed=numbers(5))

    assert RankPosition.parse(position.dump()) == position
