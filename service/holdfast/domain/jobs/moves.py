"""Moves of jobs with a plan: when to plan again, and when a choice needs a new launch. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final, Protocol

from holdfast.domain.events import (
    CapacityType,
    LaunchPlacement,
    MoveRequested,
    Planned,
    PlanReason,
)
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance
from holdfast.domain.jobs.plan_status import with_warning

_UNPLANNED: Final = frozenset({State.MOVING, State.PAUSING, State.PAUSED, State.STOPPING, State.ENDED})  # fmt: skip
"""States in which the next launch is not chosen yet."""
CONTINUED: Final = {
    PlanReason.SPOT_STANDS: CapacityType.SPOT,
    PlanReason.ON_DEMAND_STANDS: CapacityType.ON_DEMAND,
}
"""Reasons that repeat an earlier choice, whose own reason explains more."""


class JobPlanner(Protocol):
    """Chooses the nodes of one job, given the market of this moment."""

    def plan(self, job: Job, now: datetime) -> Planned:
        """What the job should run on now, without a forecast."""
        ...

    def with_forecast(self, job: Job, planned: Planned) -> Planned:
        """The plan with its forecast."""
        ...

    def ms_until_look(self, job: Job, now: datetime) -> int:
        """Milliseconds until the plan has to be made again, without news."""
        ...


def plan_events(job: Job, now: datetime, planner: JobPlanner) -> Iterator[Planned | MoveRequested]:
    """A plan that has changed, and the move that it needs."""
    if job.state in _UNPLANNED:
        return
    if planned := replan(job, now, planner):
        yield planned
        job = advance(job, planned)
    if needs_move(job):
        yield MoveRequested(at=now, reason=move_sentence(job))


def replan(job: Job, now: datetime, planner: JobPlanner) -> Planned | None:
    """The plan if its choice or its reason has changed; None if not."""
    if job.state in _UNPLANNED:
        return None
    planned = planner.plan(job, now)
    before = job.plan
    if before is not None and before.capacity is planned.capacity:
        is_same_place = before.places[:1] == planned.places[:1] or not job.placed
        is_continued = CONTINUED.get(planned.reason) is planned.capacity
        if is_same_place and (before.reason is planned.reason or is_continued):
            return None
    return with_warning(before, planner.with_forecast(job, planned))


def ms_until_look(job: Job, now: datetime, planner: JobPlanner) -> int | None:
    """Milliseconds until the plan has to be made again; None in states without a plan."""
    return None if job.state in _UNPLANNED else planner.ms_until_look(job, now)


def needs_move(job: Job) -> bool:
    """Whether the newest launch asks for something else than the plan.

    A spot request that waits stands while the plan names the same places in another order.
    """
    plan, placement = job.plan, job.placement
    if plan is None or not job.is_launched or job.state not in _MOVABLE:
        return False
    if placement is None or placement.capacity is not plan.capacity:
        return True
    if plan.capacity is CapacityType.ON_DEMAND:
        return False
    if not job.placed:
        return not {*plan.places} <= {*placement.places}
    return plan.reason is PlanReason.CHEAPER_PLACE and plan.at > _placed_at(job)


_MOVABLE: Final = frozenset(
    {State.PROVISIONING, State.STARTING, State.TRAINING, State.DEGRADED, State.RECOVERING}
)


def _placed_at(job: Job) -> datetime:
    """When the running nodes were ready, or before all plans without any."""
    return job.account.placed_at or job.submitted_at


def planned_placement(job: Job) -> LaunchPlacement | None:
    """What the next launch asks for; None without a plan."""
    plan = job.plan
    if plan is None or plan.capacity is None:
        return None
    return LaunchPlacement(capacity=plan.capacity, places=plan.places)


def move_sentence(job: Job) -> str:
    """Why a job moves, for users."""
    plan = job.plan
    assert plan, "a job without a plan does not move"
    where = f" at {plan.places[0]}" if plan.places else ""
    match plan.capacity:
        case None:
            return "moving: the nodes are given back until spot nodes last longer"
        case CapacityType.SPOT:
            return f"moving to spot nodes{where}"
        case CapacityType.ON_DEMAND:
            return f"moving to on-demand nodes{where}"
