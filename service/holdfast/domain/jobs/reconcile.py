"""The decision of the reconciler: what was seen becomes facts, and facts that are missing become one effect.

`decide` is pure and takes no hint: it may be called at any time, any number of times, by any replica. A step after a
crash is a step like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

from holdfast.domain.budgets import BudgetBalance
from holdfast.domain.events import (
    CapacityDenied,
    CapacityLost,
    Cause,
    CleanupFailed,
    Event,
    Finished,
    LaunchRequested,
    NodesReady,
    Outcome,
    Paused,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.commands import resume_command
from holdfast.domain.jobs.guards import grace_ms, ms_until_trip, trip, trip_unseen
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance
from holdfast.domain.jobs.observation import (
    Denial,
    LaunchResult,
    LaunchStatus,
    Observation,
    Placement,
)

MAX_LAUNCHES: Final = 10
"""Launches of one job before it is given up. Smaller: a launcher that restarts often ends healthy jobs. Bigger: one
that loses every job rents machines for hours before anybody looks."""


class Effect(StrEnum):
    """What to do at the launcher, under the job's newest launch key."""

    SUBMIT = "submit"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """Facts to record first, then one effect."""

    record: tuple[Event, ...] = ()
    effect: Effect | None = None
    """None when there is nothing to do but to look again later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileContext:
    """What was agreed for a job, and how its launcher ends it."""

    limits: Limits = field(default_factory=Limits)
    has_store: bool = False
    """Whether its worker can save anything."""
    purses: tuple[BudgetBalance, ...] = ()
    """What it is paid from, beside its own limits."""
    saves_on_cancel: bool = True
    """Whether the launcher's cancel gives the worker time to save. Where not, the worker is asked to leave first."""


def decide(
    job: Job, seen: Observation | None, now: datetime, terms: ReconcileContext = ReconcileContext()
) -> ReconcilePlan:
    """What to record and do, given what was seen under the job's newest launch key.

    `seen` is None when there is no launch to look at.
    """
    if job.state in {State.PAUSED, State.ENDED}:
        return ReconcilePlan()
    if not job.is_launched:
        seen = None  # What the launch before a pause has become is known.
    is_told = seen is not None and seen.standing is not LaunchStatus.UNKNOWN
    told: tuple[Event, ...] = tuple(_news(job, seen)) if seen and is_told else ()
    job = _after(job, told)
    if seen and (lost := _forgotten(job, seen)):
        told, job = (*told, lost), advance(job, lost)
    over = seen is not None and seen.standing is LaunchStatus.ENDED
    if not over and (tripped := trip(job, terms.limits, now, terms.purses)):
        told, job = (*told, tripped), advance(job, tripped)
    rest = _next(job, seen, now, terms)
    left = _orphans(job, seen) if seen else ()
    return ReconcilePlan((*told, *rest.record, *left), rest.effect)


def decide_unseen(job: Job, now: datetime, terms: ReconcileContext) -> ReconcilePlan:
    """What to record while the launcher says nothing. Money and time run on; nothing is concluded from its silence."""
    tripped = trip_unseen(job, terms.limits, now, terms.purses)
    return ReconcilePlan((tripped,) if tripped else ())


def ms_until_decision(job: Job, now: datetime, terms: ReconcileContext) -> int | None:
    """Milliseconds after which a decision is due though nothing happens until then; None: there is none to come."""
    if not job.is_leaving:
        return ms_until_trip(job, terms.limits, now, terms.purses)
    return grace_ms(job, now) if _saves_first(job, now, terms) else None


def _after(job: Job, events: Iterable[Event]) -> Job:
    for event in events:
        job = advance(job, event)
    return job


def _next(
    job: Job, seen: Observation | None, now: datetime, terms: ReconcileContext
) -> ReconcilePlan:
    """What follows for a job that knows all that was seen."""
    if seen is None:
        return _launch(job, now, terms)
    match seen.standing:
        case LaunchStatus.ENDED:
            assert seen.ending is not None
            return ReconcilePlan(tuple(_end(job, seen.ending, terms)))
        case LaunchStatus.ABSENT if job.placements == 0 and job.denials == 0:
            # Recorded but not done: a crash lies between intent and effect, or the reply was lost. Doing it (again)
            # is safe, as the key makes it idempotent; so is cancelling what was never submitted.
            return ReconcilePlan((), Effect.CANCEL if job.is_leaving else Effect.SUBMIT)
        case LaunchStatus.ABSENT | LaunchStatus.FORGOTTEN:
            return _launch(job, now, terms)
        case LaunchStatus.WAITING | LaunchStatus.UP | LaunchStatus.UNKNOWN:
            # What is unknown may stand: a new launch beside it waits until a person gives the old one up.
            ends = job.is_leaving and not _saves_first(job, now, terms)
            return ReconcilePlan((), Effect.CANCEL if ends else None)
        case _:
            assert_never(seen.standing)


def _saves_first(job: Job, now: datetime, terms: ReconcileContext) -> bool:
    """Whether a job that is leaving keeps its nodes a while longer, for its worker to save and leave."""
    return terms.has_store and not terms.saves_on_cancel and job.trains and bool(grace_ms(job, now))


def _launch(job: Job, now: datetime, terms: ReconcileContext) -> ReconcilePlan:
    """Nothing stands, and nothing will by itself: pause or end the job, or ask for a launch under a new key."""
    if job.state is State.PAUSING:
        return ReconcilePlan((_paused(job, now, terms),))
    if job.state is State.STOPPING:
        outcome = Outcome.FAILED if job.tripped else Outcome.CANCELLED
        return ReconcilePlan((Finished(at=now, outcome=outcome, detail=job.detail),))
    if job.launch - job.launches_before_resume >= MAX_LAUNCHES:
        detail = f"the launcher lost this job {MAX_LAUNCHES} times; look at its health, then submit again"
        return ReconcilePlan((Finished(at=now, outcome=Outcome.FAILED, detail=detail),))
    return ReconcilePlan((LaunchRequested(at=now, launch=job.launch + 1),), Effect.SUBMIT)


def _end(
    job: Job, ending: LaunchResult, terms: ReconcileContext
) -> Iterator[CapacityLost | Paused | Finished]:
    """The end, for the reason that somebody gave for it, if anybody did; or the pause that was asked for.

    Whatever else the launcher calls it, what it calls cancelled after we have asked for a pause is no end of the job.
    """
    outcome, detail = ending.outcome, ending.detail
    if job.state is State.PAUSING:
        if outcome is not Outcome.CANCELLED:
            yield _finished(ending, outcome, detail)
            return
        if job.placed:
            cause = Cause.PAUSED
            yield CapacityLost(at=ending.at, attempt=job.attempt, cause=cause, detail=job.detail)
        yield _paused(job, ending.at, terms)
        return
    if job.state is State.STOPPING and outcome is Outcome.CANCELLED:
        detail = job.detail
    if job.tripped and outcome is not Outcome.SUCCEEDED:
        outcome, detail = Outcome.FAILED, job.tripped
    yield _finished(ending, outcome, detail)


def _finished(ending: LaunchResult, outcome: Outcome, detail: str) -> Finished:
    return Finished(at=ending.at, outcome=outcome, exit_code=ending.exit_code, detail=detail)


def _paused(job: Job, at: datetime, terms: ReconcileContext) -> Paused:
    lost = "" if terms.has_store else "; without a checkpoint store it will begin at step 0"
    return Paused(at=at, detail=f"{job.detail}; {resume_command(job, terms.limits)}{lost}")


def _orphans(job: Job, seen: Observation) -> tuple[CleanupFailed, ...]:
    """What a launch has left behind, each thing by itself: the sweep finds each gone by itself."""
    fresh = (what for what in seen.leftovers if what not in job.leftovers)
    return tuple(CleanupFailed(at=seen.since, detail=what) for what in fresh)


def _forgotten(job: Job, seen: Observation) -> CapacityLost | None:
    """The loss of a launch that the launcher no longer knows; None where it does, or where nothing was to lose."""
    unsent = seen.standing is LaunchStatus.ABSENT and job.placements == 0 and job.denials == 0
    if seen.standing not in {LaunchStatus.ABSENT, LaunchStatus.FORGOTTEN} or unsent:
        return None
    if not job.placed and job.state is not State.PROVISIONING:
        return None
    return CapacityLost(
        at=seen.since,
        attempt=job.attempt if job.placed else 0,
        cause=Cause.LAUNCHER_FORGOT,
        detail="the launcher no longer knows this launch",
    )


def _news(job: Job, seen: Observation) -> Iterator[CapacityDenied | NodesReady | CapacityLost]:
    """What the launcher did since the last look, in order. Each placement is told once, and lost once."""
    denials = list(seen.denials[job.denials :])
    standing = job.placed
    if standing and (lost := _lost(job, seen, job.placements)):
        yield lost
        standing = False
    for number in range(job.placements + 1, seen.placements + 1):
        placement = _placement(seen, number)
        ready_at = placement.ready_at if placement else _forgotten_at(seen)
        lost = _lost(job, seen, number)
        # Nodes that stand were not denied, whatever the launcher's clocks say: their denials lie before them.
        while denials and (denials[0].at <= ready_at or lost is None):
            yield _denied(denials.pop(0))
        yield _ready(job, seen, number, ready_at)
        if lost:
            yield lost
        standing = lost is None
    if not standing:
        yield from map(_denied, denials)


def _placement(seen: Observation, number: int) -> Placement | None:
    """Placement `number` of this launch (from 1), or None where the launcher has forgotten it."""
    index = number - 1 - (seen.placements - len(seen.trail))
    return seen.trail[index] if 0 <= index < len(seen.trail) else None


def _forgotten_at(seen: Observation) -> datetime:
    """A time for placements that the launcher has forgotten: none of them outlived what it remembers."""
    return min([seen.since, *(placement.ready_at for placement in seen.trail[:1])])


def _denied(denial: Denial) -> CapacityDenied:
    return CapacityDenied(at=denial.at, zone=denial.zone, detail=denial.detail)


def _ready(job: Job, seen: Observation, number: int, ready_at: datetime) -> NodesReady:
    # A forgotten placement is priced like the newest one; it begins and ends at the same moment, so no money hangs on it.
    like = _placement(seen, number) or seen.trail[-1]
    return NodesReady(
        at=ready_at,
        attempt=job.attempts_before_launch + number,
        zone=like.zone,
        nodes=like.nodes,
        micros_per_hour=like.micros_per_hour,
        on_demand_micros_per_hour=like.on_demand_micros_per_hour,
        simulated=like.simulated,
        price_source=like.price_source,
        price_as_of=like.price_as_of,
        is_price_estimate=like.is_price_estimate,
        cloud=like.cloud,
        instance_type=like.instance_type,
        is_spot=like.is_spot,
        groups=like.groups,
    )


def _lost(job: Job, seen: Observation, number: int) -> CapacityLost | None:
    """The loss of placement `number`, or None while it stands, ended with the job, or went with a forgotten launch."""
    placement = _placement(seen, number)
    attempt = job.attempts_before_launch + number
    # Only a notice proves a reclaim; who knows of none can but say that the nodes are gone.
    unexplained = Cause.PREEMPTED if attempt in job.noticed else Cause.NODE_FAILED
    if placement is not None and placement.lost_at is not None:
        told = placement.cause or Cause.NODE_FAILED
        cause = unexplained if told is Cause.NODE_FAILED else told
        return CapacityLost(
            at=placement.lost_at, attempt=attempt, cause=cause, detail=placement.detail
        )
    if number < seen.placements or seen.standing is LaunchStatus.WAITING:
        at = _forgotten_at(seen) if placement is None else seen.since
        detail = "lost between two looks; the launcher does not tell when or why"
        return CapacityLost(at=at, attempt=attempt, cause=unexplained, detail=detail)
    return None
