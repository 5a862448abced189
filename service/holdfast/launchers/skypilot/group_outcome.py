"""Which groups of a launch have to end, and how the launch ended. Pure.

first group succeeded        the others get some time to end, and are cancelled then: succeeded
a group failed for good      the others are cancelled: failed
a group was cancelled        the others are cancelled: cancelled
a group was forgotten        the others are cancelled: forgotten, so that the job is launched again
the first group begins again after another has succeeded
                             as forgotten: the others cannot take part any more
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation
from holdfast.launchers.skypilot.group_history import LEADER, GroupShape, LaunchHistory

SUCCESS_GRACE: Final = timedelta(minutes=3)
"""Time that other groups get to end after the first one has succeeded.
A lower value cancels nodes that still upload; a higher value pays for nodes that hang at their end."""
FAILURE_GRACE: Final = timedelta(minutes=1)
"""Time that other groups get to end after one has failed for good.
SkyPilot notices the exit of a program within some 20 s. A lower value cancels groups that have failed or succeeded as
well; a higher value pays longer for nodes that wait in vain."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What follows from an observation of all groups."""

    cancels: tuple[int, ...] = ()
    """Groups to cancel now."""
    status: LaunchStatus | None = None
    """ENDED or FORGOTTEN once all groups are over; None while any may run."""
    result: LaunchResult | None = None
    """Set if and only if the status is ENDED."""
    is_ending: bool = False
    """Whether groups that were not requested yet never will be."""


def plan_groups(
    groups: Sequence[GroupShape],
    seen: Sequence[Observation],
    history: LaunchHistory,
    now: datetime,
    *,
    is_cancelled: bool,
) -> GroupPlan:
    """Return what to cancel and how the launch ended; `is_cancelled`: on request of the service."""
    ended = {number: one.result for number, one in enumerate(seen) if one.result}
    forgotten = [n for n, one in enumerate(seen) if one.status is LaunchStatus.FORGOTTEN]
    left = tuple(n for n in range(len(seen)) if n not in ended and n not in forgotten)
    if not left:
        return _over(groups, seen, history, ended, forgotten)
    is_ending = (
        is_cancelled
        or history.is_abandoned
        or bool(forgotten)
        or any(result.outcome is Outcome.CANCELLED for result in ended.values())
    )
    graces = {Outcome.FAILED: FAILURE_GRACE}
    if LEADER in ended and ended[LEADER].outcome is Outcome.SUCCEEDED:
        graces[Outcome.SUCCEEDED] = SUCCESS_GRACE
    waits = [
        result.at + graces[result.outcome] for result in ended.values() if result.outcome in graces
    ]
    is_due = is_ending or bool(history.refusals) or any(now >= due for due in waits)
    return GroupPlan(cancels=left if is_due else (), is_ending=is_due or bool(waits))


def cannot_succeed(seen: Sequence[Observation], history: LaunchHistory) -> bool:
    """Whether the first group has to begin again although another has succeeded and is gone."""
    if seen[LEADER].result or history.leader_lost_at is None:
        return False
    done = [one.result.at for one in seen if one.result and one.result.outcome is Outcome.SUCCEEDED]
    return any(history.leader_lost_at >= at for at in done)


def _over(
    groups: Sequence[GroupShape],
    seen: Sequence[Observation],
    history: LaunchHistory,
    ended: dict[int, LaunchResult],
    forgotten: Sequence[int],
) -> GroupPlan:
    at = max([result.at for result in ended.values()] + [seen[n].since for n in forgotten])
    leader = ended.get(LEADER)
    if leader and leader.outcome is Outcome.SUCCEEDED:
        result = LaunchResult(at=at, outcome=Outcome.SUCCEEDED, exit_code=0)
        return GroupPlan(status=LaunchStatus.ENDED, result=result, is_ending=True)
    failed = [number for number, one in ended.items() if one.outcome is Outcome.FAILED]
    if failed:
        first = min(failed, key=lambda number: (number != LEADER, ended[number].at))
        detail = history.refusals.get(first) or ended[first].detail
        result = LaunchResult(
            at=at,
            outcome=Outcome.FAILED,
            exit_code=ended[first].exit_code,
            detail=f"group {groups[first].name}: {detail}",
        )
        return GroupPlan(status=LaunchStatus.ENDED, result=result, is_ending=True)
    if forgotten or history.is_abandoned or not _cancelled(ended):
        return GroupPlan(status=LaunchStatus.FORGOTTEN, is_ending=True)
    result = LaunchResult(at=at, outcome=Outcome.CANCELLED, detail=_cancelled(ended))
    return GroupPlan(status=LaunchStatus.ENDED, result=result, is_ending=True)


def _cancelled(ended: dict[int, LaunchResult]) -> str:
    """How the launch was cancelled, preferably while it ran; empty if no group was."""
    details = [one.detail for one in ended.values() if one.outcome is Outcome.CANCELLED]
    return min(details, key=len, default="")
