"""The decision of the reconciler: what was seen becomes facts, and facts that are missing become one effect.

`decide` is pure and takes no hint: it may be called at any time, any number of times, by any replica. A step after a
crash is a step like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

from holdfast.domain.events import (
    CapacityDenied,
    CapacityLost,
    Cause,
    Event,
    Finished,
    LaunchRequested,
    NodesReady,
    Outcome,
)
from holdfast.domain.lifecycle import Job, State
from holdfast.domain.sighting import Denial, Placement, Sighting, Standing

MAX_LAUNCHES: Final = 10
"""Launches of one job before it is given up. Smaller: a launcher that restarts often ends healthy jobs. Bigger: one
that loses every job rents machines for hours before anybody looks."""


class Effect(StrEnum):
    """What to do at the launcher, under the job's newest launch key."""

    SUBMIT = "submit"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Plan:
    """Facts to record first, then one effect."""

    record: tuple[Event, ...] = ()
    effect: Effect | None = None
    """None when there is nothing to do but to look again later."""


def decide(job: Job, seen: Sighting | None, now: datetime) -> Plan:
    """What to record and do, given what was seen under the job's newest launch key.

    `seen` is None when there has been no launch to look at.
    """
    if job.state is State.ENDED:
        return Plan()
    if seen is None:
        return _without_launch(job, now)
    told = tuple(_news(job, seen))
    match seen.standing:
        case Standing.ENDED:
            assert seen.ending is not None
            end = seen.ending
            finished = Finished(
                at=end.at,
                outcome=end.outcome,
                exit_code=end.exit_code,
                detail=_reason(job, end.outcome, end.detail),
            )
            return Plan((*told, finished))
        case Standing.ABSENT if job.placements == 0 and job.denials == 0:
            # Recorded but not done: a crash lies between intent and effect, or the reply was lost. Doing it (again)
            # is safe, as the key makes it idempotent; so is cancelling what was never submitted.
            return Plan(told, Effect.CANCEL if job.state is State.STOPPING else Effect.SUBMIT)
        case Standing.ABSENT | Standing.FORGOTTEN:
            return _relaunch(job, told, seen, now)
        case Standing.WAITING | Standing.UP:
            return Plan(told, Effect.CANCEL if job.state is State.STOPPING else None)
        case _:
            assert_never(seen.standing)


def _without_launch(job: Job, now: datetime) -> Plan:
    if job.state is State.STOPPING:
        return Plan((Finished(at=now, outcome=Outcome.CANCELLED, detail=job.detail),))
    return Plan((LaunchRequested(at=now, launch=job.launch + 1),), Effect.SUBMIT)


def _relaunch(job: Job, told: tuple[Event, ...], seen: Sighting, now: datetime) -> Plan:
    """The launcher lost the launch: close what stood, then end the job or ask for it anew under a new key."""
    moves = [event for event in told if not isinstance(event, CapacityDenied)]
    standing = isinstance(moves[-1], NodesReady) if moves else job.placed
    never_placed = job.state is State.PROVISIONING and not moves
    if standing or never_placed:
        lost = CapacityLost(
            at=seen.since,
            attempt=job.attempts_before_launch + max(job.placements, seen.placements)
            if standing
            else 0,
            cause=Cause.LAUNCHER_FORGOT,
            detail="the launcher no longer knows this launch",
        )
        told = (*told, lost)
    if job.state is State.STOPPING:
        return Plan((*told, Finished(at=now, outcome=Outcome.CANCELLED, detail=job.detail)))
    if job.launch >= MAX_LAUNCHES:
        detail = f"the launcher lost this job {MAX_LAUNCHES} times; look at its health, then submit again"
        return Plan((*told, Finished(at=now, outcome=Outcome.FAILED, detail=detail)))
    return Plan((*told, LaunchRequested(at=now, launch=job.launch + 1)), Effect.SUBMIT)


def _news(job: Job, seen: Sighting) -> Iterator[CapacityDenied | NodesReady | CapacityLost]:
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


def _placement(seen: Sighting, number: int) -> Placement | None:
    """Placement `number` of this launch (from 1), or None where the launcher has forgotten it."""
    index = number - 1 - (seen.placements - len(seen.trail))
    return seen.trail[index] if 0 <= index < len(seen.trail) else None


def _forgotten_at(seen: Sighting) -> datetime:
    """A time for placements that the launcher has forgotten: none of them outlived what it remembers."""
    return min([seen.since, *(placement.ready_at for placement in seen.trail[:1])])


def _denied(denial: Denial) -> CapacityDenied:
    return CapacityDenied(at=denial.at, zone=denial.zone, detail=denial.detail)


def _ready(job: Job, seen: Sighting, number: int, ready_at: datetime) -> NodesReady:
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
    )


def _lost(job: Job, seen: Sighting, number: int) -> CapacityLost | None:
    """The loss of placement `number`, or None while it stands, ended with the job, or went with a forgotten launch."""
    placement = _placement(seen, number)
    attempt = job.attempts_before_launch + number
    if placement is not None and placement.lost_at is not None:
        cause = placement.cause or Cause.NODE_FAILED
        return CapacityLost(
            at=placement.lost_at, attempt=attempt, cause=cause, detail=placement.detail
        )
    if number < seen.placements or seen.standing is Standing.WAITING:
        # Only a notice proves a reclaim; without one the nodes failed.
        at = _forgotten_at(seen) if placement is None else seen.since
        detail = "lost between two looks; the launcher does not tell when or why"
        return CapacityLost(at=at, attempt=attempt, cause=Cause.NODE_FAILED, detail=detail)
    return None


def _reason(job: Job, outcome: Outcome, detail: str) -> str:
    """Why it ended; for a cancel, what the person who asked for it said."""
    return job.detail if outcome is Outcome.CANCELLED and job.state is State.STOPPING else detail
