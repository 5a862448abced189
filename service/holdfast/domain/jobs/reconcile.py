"""The reconciler's decision: events to append, and whether to launch, relaunch or cancel.

When is a job launched again after it lost its nodes? Usually its launcher recovers it within the
same launch, and this module only records `CapacityLost` and the next `NodesReady`:

* local: the supervisor provisions new nodes (`launchers/local/supervisor.py`).
* Slurm: Slurm requeues the job, or another one is submitted (`launchers/slurm/recovery.py`).
* SkyPilot: its controller recovers the managed job (`job_recovery` in `rendering/skypilot.py`).

The service records a new `LaunchRequested` (`_launch_again`) only if there is no launch: the job is
queued, also after a resume, or its launch is FORGOTTEN, or ABSENT although it had nodes or denials.
An ABSENT launch without either may not have been submitted, so its own key is submitted again.
Beside an UNKNOWN launch nothing is launched, because it may still run. A paused job waits for a
resume. A job that has used MAX_LAUNCHES launches since it was submitted or resumed fails.

A job with a plan is launched on what its plan has chosen (`moves.py`). If the plan changes, its launch is
cancelled as for a pause, and the next one is requested once the old one has provably ended.

`decide` is pure: it follows from the observation and the events so far. Any replica may call it at
any time, any number of times. A step after a crash is an ordinary step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

from holdfast.domain.events import (
    Admitted,
    CapacityDenied,
    CapacityLost,
    Cause,
    CleanupFailed,
    Event,
    Finished,
    LaunchRequested,
    Moved,
    NodeLost,
    NodeReplaced,
    NodesReady,
    Outcome,
    Paused,
    Requeued,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.drills import with_drill_mark
from holdfast.domain.jobs.guards import (
    BudgetLike,
    grace_ms,
    ms_until_trip,
    trip,
    trip_without_observation,
)
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance
from holdfast.domain.jobs.moves import (
    JobPlanner,
    ms_until_look,
    plan_events,
    planned_placement,
    replan,
)
from holdfast.domain.jobs.observation import (
    Denial,
    LaunchResult,
    LaunchStatus,
    NodeChange,
    Observation,
    Placement,
)
from holdfast.domain.jobs.pauses import pause_end, priority_pause
from holdfast.domain.queue.admission import QueueAdmission
from holdfast.domain.queue.priority_pauses import PriorityPause

MAX_LAUNCHES: Final = 10
"""Launches of one job before it fails. A lower value ends healthy jobs if a launcher restarts often; a higher value lets a
launcher that loses every job rent machines for hours before anyone notices.
"""


class Effect(StrEnum):
    """Action at the launcher under the job's newest launch key."""

    SUBMIT = "submit"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """Events to append first, then one effect."""

    record: tuple[Event, ...] = ()
    effect: Effect | None = None
    """None if the only step is to observe again later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileContext:
    """Limits, budgets and launcher properties that a decision depends on."""

    limits: Limits = field(default_factory=Limits)
    has_store: bool = False
    """Whether the worker can save checkpoints."""
    budgets: tuple[BudgetLike, ...] = ()
    """Budgets that pay for the job, in addition to its own limits."""
    saves_on_cancel: bool = True
    """Whether the launcher's cancel gives the worker time to save. If not, the worker is asked to exit first."""
    planner: JobPlanner | None = None
    """Chooses the job's nodes; None if its launcher does."""
    waits_for_turn: bool = False
    """Whether a queued job is not launched yet, because others of its sweep run."""
    admission: QueueAdmission | None = None
    """Whether the quotas have room for the job; None if it needs no admission."""
    priority_pause: PriorityPause | None = None
    """The pause that the queue has chosen for the job; None without one."""


def decide(
    job: Job,
    seen: Observation | None,
    now: datetime,
    context: ReconcileContext = ReconcileContext(),
) -> ReconcilePlan:
    """Decide what to append and do, given the observation under the job's newest launch key.

    `seen` is None without a launch to observe.
    """
    if job.state in {State.PAUSED, State.ENDED}:
        return ReconcilePlan()
    if not job.is_launched:
        seen = None  # The outcome of the launch before a pause is known.
    before = job.state
    events = [*_events_of(job, seen, now)] if seen else []
    for event in events:
        job = advance(job, event)
    if before is State.MOVING and job.state is State.QUEUED:
        seen = None
    over = seen is not None and seen.status is LaunchStatus.ENDED
    if not over and (tripped := trip(job, context.limits, now, _budgets(job, context))):
        events, job = [*events, tripped], advance(job, tripped)
    if not over and (pause := priority_pause(job, context.priority_pause, now)):
        events, job = [*events, pause], advance(job, pause)
    if not over and context.planner:
        for planned in plan_events(job, now, context.planner):
            events, job = [*events, planned], advance(job, planned)
    step = _next_step(job, seen, now, context)
    left = _orphans(job, seen) if seen else ()
    return ReconcilePlan((*events, *step.record, *left), step.effect)


def _events_of(job: Job, seen: Observation, now: datetime) -> Iterator[Event]:
    """The events that an observation shows, in order."""
    if seen.status is not LaunchStatus.UNKNOWN:
        for event in _observed_events(job, seen):
            marked = _with_current_prices(job, with_drill_mark(job, event))
            yield marked
            job = advance(job, marked)
    if lost := _forgotten(job, seen):
        yield lost
        job = advance(job, lost)
    yield from _moved(job, seen, now)


def decide_without_observation(job: Job, now: datetime, context: ReconcileContext) -> ReconcilePlan:
    """Decide what to append while the launcher does not respond.

    Only cost and time guards can trip. A plan is recorded, and its move requested with the next observation: the worker continues on the
    nodes that it has.
    """
    if tripped := trip_without_observation(job, context.limits, now, _budgets(job, context)):
        return ReconcilePlan((tripped,))
    planned = replan(job, now, context.planner) if context.planner else None
    return ReconcilePlan((planned,) if planned else ())


def _budgets(job: Job, context: ReconcileContext) -> tuple[BudgetLike, ...]:
    """The budgets that may pause a job; none before its turn, since others may leave enough."""
    return () if context.waits_for_turn and job.state is State.QUEUED else context.budgets


def ms_until_decision(job: Job, now: datetime, context: ReconcileContext) -> int | None:
    """Milliseconds until a decision is due without further events; None if none is due."""
    if not job.is_leaving:
        due_ms = ms_until_trip(job, context.limits, now, context.budgets)
        look_ms = ms_until_look(job, now, context.planner) if context.planner else None
        return min((ms for ms in (due_ms, look_ms) if ms is not None), default=None)
    return grace_ms(job, now) if _waits_for_save(job, now, context) else None


def _next_step(
    job: Job, seen: Observation | None, now: datetime, context: ReconcileContext
) -> ReconcilePlan:
    """The next step of a job to which all observed events have been applied."""
    if seen is None:
        return _without_launch(job, now, context)
    match seen.status:
        case LaunchStatus.ENDED:
            assert seen.result is not None
            return ReconcilePlan(tuple(_end(job, seen.result, context)))
        case LaunchStatus.ABSENT if job.placements == 0 and job.denials == 0:
            # The launch was recorded but never confirmed: the process crashed before submitting it, or the response was
            # lost. Submitting again is safe because the key is idempotent; so is cancelling an unsubmitted launch.
            return ReconcilePlan((), Effect.CANCEL if job.is_leaving else Effect.SUBMIT)
        case LaunchStatus.ABSENT | LaunchStatus.FORGOTTEN:
            return _without_launch(job, now, context)
        case LaunchStatus.WAITING | LaunchStatus.UP | LaunchStatus.UNKNOWN:
            # An unknown launch may be running: the job waits until a user gives it up.
            ends = job.is_leaving and not _waits_for_save(job, now, context)
            submits = seen.is_partial and not job.is_leaving
            return ReconcilePlan((), Effect.CANCEL if ends else Effect.SUBMIT if submits else None)
        case _:
            assert_never(seen.status)


def _waits_for_save(job: Job, now: datetime, context: ReconcileContext) -> bool:
    """Whether a leaving job keeps its nodes until its worker has saved and exited."""
    return (
        context.has_store
        and not context.saves_on_cancel
        and job.is_training
        and bool(grace_ms(job, now))
    )


def _without_launch(job: Job, now: datetime, context: ReconcileContext) -> ReconcilePlan:
    """Pause or end a job that was asked to, without a running launch; launch any other job."""
    if job.state is State.PAUSING:
        return ReconcilePlan(_pause_end(job, now, context))
    if job.state is State.MOVING:  # The launcher lost the launch: the next step plans.
        return ReconcilePlan((Moved(at=now, launch=job.launch),))
    if job.state is State.STOPPING:
        outcome = Outcome.FAILED if job.tripped else Outcome.CANCELLED
        return ReconcilePlan((Finished(at=now, outcome=outcome, detail=job.detail),))
    if context.waits_for_turn and job.state is State.QUEUED:
        return ReconcilePlan()
    admitted = context.admission.events(job.queued_at, now) if context.admission else ()
    has_plan = context.planner is None or (job.plan and job.plan.capacity)
    if not has_plan or (context.admission and not admitted):
        return ReconcilePlan()
    return _launch_again(job, now, *admitted)


def _launch_again(job: Job, now: datetime, *admitted: Admitted) -> ReconcilePlan:
    """Request the first or the next launch, under a new key; the job fails after MAX_LAUNCHES."""
    if job.launch - job.launches_before_resume >= MAX_LAUNCHES:
        detail = f"the launcher lost this job {MAX_LAUNCHES} times; check the launcher's health, then submit the job again"
        return ReconcilePlan((Finished(at=now, outcome=Outcome.FAILED, detail=detail),))
    launch = LaunchRequested(at=now, launch=job.launch + 1, placement=planned_placement(job))
    return ReconcilePlan((*admitted, launch), Effect.SUBMIT)


def _moved(job: Job, seen: Observation, now: datetime) -> Iterator[CapacityLost | Moved]:
    """The end of a moving job's launch, unless its program has ended by itself."""
    ending = seen.result
    if job.state is not State.MOVING or ending is None or ending.outcome is not Outcome.CANCELLED:
        return
    if job.placed:
        cause = Cause.MOVED
        yield CapacityLost(at=ending.at, attempt=job.attempt, cause=cause, detail=job.detail)
    yield Moved(at=max(now, ending.at), launch=job.launch)


def _end(
    job: Job, ending: LaunchResult, context: ReconcileContext
) -> Iterator[CapacityLost | Paused | Requeued | Finished]:
    """The end of the job with the reason that a user or guard gave, or the requested pause.

    A launch that the launcher reports as cancelled after a pause request does not end the job.
    """
    outcome, detail = ending.outcome, ending.detail
    if job.state is State.PAUSING:
        if outcome is not Outcome.CANCELLED:
            yield _finished(ending, outcome, detail)
            return
        if job.placed:
            cause = Cause.PAUSED
            yield CapacityLost(at=ending.at, attempt=job.attempt, cause=cause, detail=job.detail)
        yield from _pause_end(job, ending.at, context)
        return
    if job.state is State.STOPPING and outcome is Outcome.CANCELLED:
        detail = job.detail
    if job.tripped and outcome is not Outcome.SUCCEEDED:
        outcome, detail = Outcome.FAILED, job.tripped
    yield _finished(ending, outcome, detail)


def _finished(ending: LaunchResult, outcome: Outcome, detail: str) -> Finished:
    return Finished(at=ending.at, outcome=outcome, exit_code=ending.exit_code, detail=detail)


def _pause_end(job: Job, at: datetime, context: ReconcileContext) -> tuple[Paused | Requeued, ...]:
    return pause_end(job, at, context.limits, has_store=context.has_store)


def _orphans(job: Job, seen: Observation) -> tuple[CleanupFailed, ...]:
    """One CleanupFailed per orphan of a launch, because each is cleaned up separately."""
    new = (name for name in seen.leftovers if name not in job.leftovers)
    return tuple(CleanupFailed(at=seen.since, detail=name) for name in new)


def _forgotten(job: Job, seen: Observation) -> CapacityLost | None:
    """Capacity loss of a launch that the launcher no longer knows.

    None if the launcher knows it, or it had no capacity.
    """
    unsent = seen.status is LaunchStatus.ABSENT and job.placements == 0 and job.denials == 0
    if seen.status not in {LaunchStatus.ABSENT, LaunchStatus.FORGOTTEN} or unsent:
        return None
    if not job.placed and job.state is not State.PROVISIONING:
        return None
    return CapacityLost(
        at=seen.since,
        attempt=job.attempt if job.placed else 0,
        cause=Cause.LAUNCHER_FORGOT,
        detail="the launcher no longer knows this launch",
    )


def _observed_events(
    job: Job, seen: Observation
) -> Iterator[CapacityDenied | NodesReady | NodeLost | NodeReplaced | CapacityLost]:
    """Launcher events since the last observation, in order.

    Each placement starts and is lost once, and each of its node changes occurs once.
    """
    denials = list(seen.denials[job.denials :])
    is_placed = job.placed
    if is_placed:
        changes = _node_changes(job, seen, job.placements, job.node_changes)
        yield from changes
        if lost := _lost(job, seen, job.placements, changes):
            yield lost
            is_placed = False
    for number in range(job.placements + 1, seen.placements + 1):
        placement = _placement(seen, number)
        ready_at = placement.ready_at if placement else _forgotten_at(seen)
        changes = _node_changes(job, seen, number)
        lost = _lost(job, seen, number, changes)
        # Denials precede nodes that are running, whatever the launcher's clocks report.
        while denials and (denials[0].at <= ready_at or lost is None):
            yield _denied(denials.pop(0))
        yield _ready(job, seen, number, ready_at)
        yield from changes
        if lost:
            yield lost
        is_placed = lost is None
    # A late denial says nothing about nodes that run, but one of a node group that is missing does.
    groups = (part for newest in seen.recent_placements[-1:] for part in newest.groups)
    if not is_placed or any(part.name for part in groups):
        yield from map(_denied, denials)


def _placement(seen: Observation, number: int) -> Placement | None:
    """Placement `number` of this launch (from 1); None if the launcher no longer lists it."""
    index = number - 1 - (seen.placements - len(seen.recent_placements))
    return seen.recent_placements[index] if 0 <= index < len(seen.recent_placements) else None


def _forgotten_at(seen: Observation) -> datetime:
    """A time for placements that the launcher no longer lists: before the oldest listed one."""
    return min([seen.since, *(placement.ready_at for placement in seen.recent_placements[:1])])


def _denied(denial: Denial) -> CapacityDenied:
    return CapacityDenied(at=denial.at, zone=denial.zone, detail=denial.detail)


def _ready(job: Job, seen: Observation, number: int, ready_at: datetime) -> NodesReady:
    # An unlisted placement gets the newest price. It starts and ends at the same time, so its cost is zero.
    like = _placement(seen, number) or seen.recent_placements[-1]
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
        absent_nodes=like.absent_nodes,
    )


def _with_current_prices(job: Job, event: Event) -> Event:
    """A new attempt with current prices of the node groups that run since the one before.

    Their launcher knows the price at which they began. `job` is the job before the event.
    """
    before = job.account.meters[-1] if job.account.meters else None
    if not isinstance(event, NodesReady) or not event.has_named_groups or before is None:
        return event
    if before.until != event.at or len(before.tariffs) != len(event.groups):
        return event
    groups = tuple(
        replace(part, micros_per_hour=rate.newest_micros_per_hour or part.micros_per_hour)
        if number and running  # The loss of the first group ended the attempt before.
        else part
        for number, ((part, running), rate) in enumerate(
            zip(event.running_parts, before.tariffs, strict=True)
        )
    )
    total = sum(part.micros_per_hour for part in groups)
    return replace(event, groups=groups, micros_per_hour=total)


def _node_changes(
    job: Job, seen: Observation, number: int, recorded: int = 0
) -> list[NodeLost | NodeReplaced]:
    """Losses and replacements of single nodes of placement `number`, after the recorded ones.

    A change after the loss of the placement concerns nodes that are released.
    """
    placement = _placement(seen, number)
    if placement is None:
        return []
    attempt, events = job.attempts_before_launch + number, list[NodeLost | NodeReplaced]()
    for change in placement.node_changes[recorded:]:
        if placement.lost_at is None or change.at <= placement.lost_at:
            unexplained = _unexplained_cause(job, attempt, events)
            if change.with_node is not None:  # It was released for the loss of that node.
                same = (e for e in events if isinstance(e, NodeLost) and e.node == change.with_node)
                unexplained = next((e.cause for e in same), unexplained)
            cause = _cause(change.cause, unexplained)
            events.append(_node_change(change, attempt, cause))
    return events


def _node_change(change: NodeChange, attempt: int, cause: Cause) -> NodeLost | NodeReplaced:
    if change.cause is None:
        return NodeReplaced(
            at=change.at,
            group=change.group,
            attempt=attempt,
            node=change.node,
            nodes=change.nodes,
            micros_per_hour=change.micros_per_hour,
            on_demand_micros_per_hour=change.on_demand_micros_per_hour,
            placed=change.placed,
            price_source=change.price_source,
            is_price_estimate=change.is_price_estimate,
        )
    return NodeLost(
        at=change.at,
        group=change.group,
        attempt=attempt,
        node=change.node,
        with_node=change.with_node,
        nodes=change.nodes,
        micros_per_hour=change.micros_per_hour,
        on_demand_micros_per_hour=change.on_demand_micros_per_hour,
        cause=cause,
        detail=change.detail,
    )


def _unexplained_cause(job: Job, attempt: int, earlier: Iterable[Event]) -> Cause:
    """Cause of a loss that its launcher does not explain.

    Only a notice proves a preemption, and it explains the first loss after it.
    """
    is_explained = any(isinstance(event, NodeLost) for event in earlier)
    return Cause.PREEMPTED if attempt in job.noticed and not is_explained else Cause.NODE_FAILED


def _cause(reported: Cause | None, unexplained: Cause) -> Cause:
    return unexplained if reported is None or reported is Cause.NODE_FAILED else reported


def _lost(
    job: Job, seen: Observation, number: int, changes: Sequence[Event]
) -> CapacityLost | None:
    """Loss of placement `number` after the `changes` of its nodes.

    None while it runs, if it ended with the job or was lost with its launch.
    """
    placement = _placement(seen, number)
    attempt = job.attempts_before_launch + number
    unexplained = _unexplained_cause(job, attempt, changes)
    if placement is not None and placement.lost_at is not None:
        cause = _cause(placement.cause, unexplained)
        return CapacityLost(
            at=placement.lost_at, attempt=attempt, cause=cause, detail=placement.detail
        )
    if number < seen.placements or seen.status is LaunchStatus.WAITING:
        at = _forgotten_at(seen) if placement is None else seen.since
        detail = "lost between two observations; the launcher reports neither time nor cause"
        return CapacityLost(at=at, attempt=attempt, cause=unexplained, detail=detail)
    return None
