"""When the other groups of a launch end, and how the launch ended."""

from __future__ import annotations

from datetime import datetime

import pytest
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation
from holdfast.launchers.skypilot.group_history import (
    GroupEvent,
    GroupEventKind,
    GroupShape,
    LaunchHistory,
)
from holdfast.launchers.skypilot.group_outcome import (
    FAILURE_GRACE,
    SUCCESS_GRACE,
    GroupPlan,
    plan_groups,
)
from support.events import at

GROUPS = (GroupShape("head", 1), GroupShape("workers", 2))
UP = Observation(status=LaunchStatus.UP, since=at(0))
ABSENT = Observation(status=LaunchStatus.ABSENT, since=at(0))
FORGOTTEN = Observation(status=LaunchStatus.FORGOTTEN, since=at(90))


def ended(outcome: Outcome, seconds: float = 50, code: int | None = None) -> Observation:
    detail = {Outcome.CANCELLED: "cancelled on request", Outcome.FAILED: "it broke"}.get(outcome, "")  # fmt: skip
    result = LaunchResult(at=at(seconds), outcome=outcome, exit_code=code, detail=detail)
    return Observation(status=LaunchStatus.ENDED, since=at(seconds), result=result)


GOOD, BAD, GONE = ended(Outcome.SUCCEEDED), ended(Outcome.FAILED, 60, 3), ended(Outcome.CANCELLED)


def plan(*seen: Observation, now: datetime = at(55), events: tuple[GroupEvent, ...] = (), cancelled: bool = False) -> GroupPlan:  # fmt: skip
    history = LaunchHistory.of(GROUPS, events)
    return plan_groups(GROUPS, seen, history, now, is_cancelled=cancelled)


def test_nothing_ends_while_all_groups_run() -> None:
    assert plan(UP, UP) == plan(UP, ABSENT) == GroupPlan()


@pytest.mark.parametrize(
    ("seen", "grace"),
    [((GOOD, UP), SUCCESS_GRACE), ((UP, BAD), FAILURE_GRACE), ((BAD, UP), FAILURE_GRACE)],
)
def test_others_get_time_to_end(seen: tuple[Observation, ...], grace: object) -> None:
    over = next(one.result.at for one in seen if one.result)
    [left] = [number for number, one in enumerate(seen) if not one.result]

    assert plan(*seen, now=over) == GroupPlan(is_ending=True)
    assert plan(*seen, now=over + grace) == GroupPlan(cancels=(left,), is_ending=True)  # type: ignore[operator]


def test_group_that_succeeds_before_the_first_one_ends_nothing() -> None:
    assert plan(UP, GOOD, now=at(1e6)) == GroupPlan()


@pytest.mark.parametrize("other", [GONE, FORGOTTEN])
def test_cancelled_or_forgotten_group_ends_the_others_at_once(other: Observation) -> None:
    assert plan(UP, other).cancels == (0,)


def test_cancel_of_the_service_is_repeated_for_all_groups() -> None:
    assert plan(UP, ABSENT, cancelled=True).cancels == (0, 1)


@pytest.mark.parametrize(
    ("seen", "outcome", "detail"),
    [
        ((GOOD, GOOD), Outcome.SUCCEEDED, ""),
        ((GOOD, GONE), Outcome.SUCCEEDED, ""),
        ((GOOD, BAD), Outcome.SUCCEEDED, ""),
        ((GOOD, FORGOTTEN), Outcome.SUCCEEDED, ""),
        ((BAD, GONE), Outcome.FAILED, "group head: it broke"),
        ((GONE, BAD), Outcome.FAILED, "group workers: it broke"),
        ((BAD, BAD), Outcome.FAILED, "group head: it broke"),
        ((GONE, GONE), Outcome.CANCELLED, "cancelled on request"),
    ],
)
def test_end_of_a_launch(seen: tuple[Observation, ...], outcome: Outcome, detail: str) -> None:
    found = plan(*seen)

    assert found.status is LaunchStatus.ENDED
    assert found.result
    assert (found.result.outcome, found.result.detail) == (outcome, detail)
    assert found.result.at == max(one.since for one in seen)


def test_forgotten_launch_begins_again() -> None:
    assert plan(GONE, FORGOTTEN).status is LaunchStatus.FORGOTTEN


def test_abandoned_launch_begins_again_once_all_groups_are_over() -> None:
    event = GroupEvent(at=at(9), kind=GroupEventKind.ABANDONED, group=0, number=1)

    assert plan(UP, GOOD, events=(event,)).cancels == (0,)
    assert plan(GONE, GOOD, events=(event,)).status is LaunchStatus.FORGOTTEN
    assert plan(GOOD, GOOD, events=(event,)).status is LaunchStatus.ENDED


def test_refusal_explains_the_failure() -> None:
    event = GroupEvent(at=at(9), kind=GroupEventKind.REFUSED, group=1, number=1, detail="no such image")  # fmt: skip

    found = plan(GONE, BAD, events=(event,))

    assert found.result
    assert found.result.detail == "group workers: no such image"
