"""The state of a job, computed from its events.

    queued --LaunchRequested--> provisioning --NodesReady--> starting --TrainingStarted--> training
    starting | training | degraded --CapacityLost--> recovering --NodesReady--> starting
    training | degraded --RanksRestarted--> starting       (ranks failed and start again on their nodes)
    training | degraded --RanksReplaced--> training        (ranks were replaced while the others waited)
    training | degraded --RanksReplaced--> degraded        (ranks of missing nodes run on other nodes)
    starting | training | degraded --NodeLost, NodeReplaced--> same
    recovering --LaunchRequested--> provisioning           (lost by the launcher: a new launch key)
    any active state with a launch --MoveRequested--> moving --Moved--> queued
    any active state --PauseRequested, GuardTripped--> pausing --Paused--> paused --ResumeRequested--> queued
    any active state with a launch --PausedForPriority--> pausing --Paused--> paused --Requeued--> queued
    paused --Resized--> paused                             (its next launches ask for other resources)
    any state but ended --CancelRequested, GuardTripped--> stopping
    any but paused and ended --Finished--> ended           (a pause or a cancel may lose the race)

Moving, pausing and stopping absorb further launcher events. Each guard defines whether it pauses or stops the job.

Only this module computes states. Worker events change the state for the current attempt only; otherwise they annotate.
Cleanup events annotate in every state. A launcher event without a transition is a bug of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final, assert_never

from holdfast.domain.billing.rate import RateSchedule
from holdfast.domain.billing.running_cost import RunningCost
from holdfast.domain.events import (
    PREEMPTION_CAUSES,
    Admitted,
    CancelRequested,
    CapacityDenied,
    CapacityLost,
    Cause,
    CheckpointsRemoved,
    CleanedUp,
    CleanupFailed,
    DrillRequested,
    Event,
    Finished,
    GuardTripped,
    LaunchRequested,
    LimitsChanged,
    Moved,
    MoveRequested,
    NodeLost,
    NodeReplaced,
    NodesReady,
    Outcome,
    Paused,
    PausedForPriority,
    PauseRequested,
    Planned,
    PriceChanged,
    PriorityChanged,
    Requeued,
    Resized,
    ResumeRequested,
    RunsCompared,
    Submitted,
    TagsChanged,
    UnknownEvent,
    WorkerFact,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.spec import engine_of
from holdfast.domain.jobs.drills import drills_of_new_attempt, pending_drill
from holdfast.domain.jobs.job import Job, LauncherChange, State
from holdfast.domain.jobs.node_changes import (
    groups_of,
    in_training,
    with_missing_since,
    with_node_change,
    with_preemption,
)
from holdfast.domain.jobs.plan_status import Pace, plan_after
from holdfast.domain.jobs.transitions import TRANSITIONS, JobAnnotation
from holdfast.domain.jobs.worker_events import apply_progress, apply_worker_event
from holdfast.errors import IllegalTransition

FOLD: Final = 18
"""Version of the fold. Raise it if the same events yield a different `Job`, so that cached rows are recomputed."""


def create_job(job_id: str, event: Submitted) -> Job:
    """The job after its first event."""
    return Job(
        id=job_id,
        seq=1,
        name=event.name,
        owner=event.by,
        project=event.project,
        engine=engine_of(event.spec.get("resources") or {}),
        tags=(event.spec.get("holdfast") or {}).get("tags") or {},
        sweep=event.sweep,
        trial=event.trial,
        parameters=event.parameters,
        min_nodes=event.spec.get("min_nodes"),
        state=State.QUEUED,
        submitted_at=event.at,
        updated_at=event.at,
        detail="waiting for its first launch",
        priority=event.spec.get("holdfast", {}).get("priority", 0),
        queued_at=event.at,
        account=RunningCost(free_since=event.at),
    )


def advance(job: Job, event: Event) -> Job:
    """The job after `event`.

    Raises:
        IllegalTransition: The event cannot follow; callers must filter late and repeated events.
    """
    job = replace(job, seq=job.seq + 1, updated_at=max(job.updated_at, event.at))
    return with_missing_since(job, _apply(job, event), event.at)


def _apply(job: Job, event: Event) -> Job:
    if isinstance(event, WorkerFact):
        return apply_worker_event(apply_progress(job, event), event)
    if isinstance(event, JobAnnotation):
        return _apply_annotation(job, event)
    match event:
        case UnknownEvent():
            return replace(job, passed_over=job.passed_over + 1)
        case Submitted():
            raise IllegalTransition(f"{job.id} was submitted already")
        case (
            LaunchRequested()
            | CapacityDenied()
            | NodesReady()
            | CapacityLost()
            | NodeLost()
            | NodeReplaced()
            | PauseRequested()
            | Paused()
            | MoveRequested()
            | Moved()
            | PausedForPriority()
            | Requeued()
            | Resized()
            | ResumeRequested()
            | CancelRequested()
            | GuardTripped()
            | Finished()
        ):
            return _apply_transition(job, event)
        case _:
            assert_never(event)


def _apply_annotation(  # noqa: C901, PLR0911, PLR0912 - one for each kind
    job: Job, event: JobAnnotation
) -> Job:
    """The job after an event that does not change its state."""
    match event:
        case CleanupFailed(detail=detail):
            return replace(job, leftovers=(*(x for x in job.leftovers if x != detail), detail))
        case CleanedUp(detail=detail):
            return replace(job, leftovers=tuple(x for x in job.leftovers if x != detail))
        case PriceChanged():
            return _repriced(job, event)
        case LimitsChanged(limits=limits):
            if job.state is State.ENDED:
                raise IllegalTransition(f"{job.id} is {job.status}: LimitsChanged cannot follow")
            return replace(job, limits=Limits.model_validate(limits, extra="ignore"))
        case TagsChanged(tags=tags):
            return replace(job, tags=tags)
        case DrillRequested():
            return replace(job, pending_drills=(*job.pending_drills, pending_drill(job, event)))
        case Planned():
            return replace(job, plan=plan_after(job.plan, event))
        case PriorityChanged(priority=priority):
            if job.state is State.ENDED:
                raise IllegalTransition(f"{job.id} is {job.status}: PriorityChanged cannot follow")
            return replace(job, priority=priority)
        case Admitted():
            return replace(job, wait_began_at=event.at)
        case CheckpointsRemoved() | RunsCompared():
            return job
        case _:
            assert_never(event)


def fold(job_id: str, events: Iterable[Event]) -> Job:
    """The job after all of `events`, the first of which must be `Submitted`.

    Raises:
        IllegalTransition: The events do not follow one another.
    """
    job: Job | None = None
    for event in events:
        if job is not None:
            job = replay_event(job, event)
        elif isinstance(event, Submitted):
            job = create_job(job_id, event)
        else:
            raise IllegalTransition(
                f"{job_id} begins with {type(event).__name__} instead of Submitted"
            )
    if job is None:
        raise IllegalTransition(f"{job_id} has no events")
    return job


def replay_event(job: Job, event: Event) -> Job:
    """The job after a logged event. Events that cannot follow an unknown event are skipped."""
    try:
        return advance(job, event)
    except IllegalTransition:
        if not job.passed_over:
            raise
        return advance(job, UnknownEvent(at=event.at, kind=type(event).__name__, body={}))


def _apply_transition(  # noqa: C901, PLR0911 - one for each kind
    job: Job,
    event: LaunchRequested
    | CapacityDenied
    | NodesReady
    | CapacityLost
    | NodeLost
    | NodeReplaced
    | PauseRequested
    | Paused
    | MoveRequested
    | Moved
    | PausedForPriority
    | Requeued
    | Resized
    | ResumeRequested
    | CancelRequested
    | GuardTripped
    | Finished,
) -> Job:
    state = TRANSITIONS.get((job.state, type(event)))
    if state is None:
        raise IllegalTransition(f"{job.id} is {job.status}: {type(event).__name__} cannot follow")
    # Keep the reason of the stop until the job ends.
    reason = job.detail if job.is_leaving else None
    match event:
        case LaunchRequested():
            return _launched(job, event, state)
        case CapacityDenied(zone=zone):
            # While nodes run, the detail names those that are missing.
            reason = job.detail if job.placed else reason
            return replace(
                job,
                state=state,
                denials=job.denials + 1,
                detail=reason or f"no capacity in {zone}; retrying",
            )
        case NodesReady():
            return _placed(job, event, state, reason or "")
        case CapacityLost() | NodeLost() | NodeReplaced():
            return _with_capacity_change(job, event, state, reason)
        case (
            PauseRequested()
            | PausedForPriority()
            | CancelRequested()
            | GuardTripped()
            | MoveRequested()
        ):
            return _leaving(job, event, state)
        case Paused() | Requeued() | Moved():
            return _without_launch(job, event, state)
        case Resized():
            return _resized(job, event)
        case ResumeRequested():
            return _resumed(job, event, state)
        case Finished():
            return _ended(job, event)
        case _:
            assert_never(event)


def _launched(job: Job, event: LaunchRequested, state: State) -> Job:
    return replace(
        job,
        state=state,
        launch=event.launch,
        placement=event.placement,
        wait_began_at=_wait_began_at(job, event),
        launch_limits=job.limits,
        is_launched=True,
        attempts_before_launch=job.attempt,
        denials=0,
        detail="requesting nodes",
    )


def _wait_began_at(job: Job, event: LaunchRequested) -> datetime | None:
    """The wait for nodes begins with the launch, unless the job only moves to other nodes."""
    is_new = job.state is State.QUEUED and job.plan is None
    return event.at if is_new else job.wait_began_at


def _leaving(
    job: Job,
    event: PauseRequested | PausedForPriority | CancelRequested | GuardTripped | MoveRequested,
    state: State,
) -> Job:
    makes_room = isinstance(event, PausedForPriority)
    guard = event.guard if isinstance(event, GuardTripped) else None
    return replace(
        job,
        state=State.PAUSING if guard and guard.pauses else state,
        detail=event.detail if isinstance(event, GuardTripped) else event.reason,
        # A cancel of a pausing job gives its worker no additional time.
        stop_asked_at=(job.stop_asked_at if job.is_leaving else None) or event.at,
        tripped=event.detail if isinstance(event, GuardTripped) else "",
        guard=guard,
        paused_for=event.for_job if isinstance(event, PausedForPriority) else "",
        priority_pauses=job.priority_pauses + makes_room,
    )


def _without_launch(job: Job, event: Paused | Requeued | Moved, state: State) -> Job:
    """The job whose launch has ended.

    After a move, that launch counts neither as lost nor as fruitless.
    """
    if isinstance(event, Requeued):
        return _requeued(job, event, state)
    if isinstance(event, Paused):
        return replace(_released(job, event.at), state=state, detail=event.detail)
    return replace(_uncounted(_released(job, event.at)), state=state, stop_asked_at=None)


def _uncounted(job: Job) -> Job:
    """The job whose last launch was given up for a reason that is not its own."""
    is_fruitless = job.attempt > job.advanced_attempt
    return replace(
        job,
        launches_before_resume=job.launches_before_resume + 1,
        advanced_attempt=job.advanced_attempt + is_fruitless,
    )


def _requeued(job: Job, event: Requeued, state: State) -> Job:
    """The job that waits in the queue again. Its guards keep their counts."""
    return replace(
        _uncounted(job),
        state=state,
        detail=f"waiting in the queue again, {job.detail}",
        queued_at=event.at,
        stop_asked_at=None,
        paused_for="",
        account=job.account.resumed(event.at),
    )


def _released(job: Job, at: datetime) -> Job:
    """The job without a launch."""
    return replace(
        job,
        is_launched=False,
        placed=False,
        absent_nodes=(),
        lost_nodes=(),
        preempted_nodes=(),
        drilled_nodes=(),
        pending_drills=(),
        account=job.account.closed(at),
    )


def _resized(job: Job, event: Resized) -> Job:
    """The paused job with other resources. Plan and pace belong to the nodes that it had."""
    engine = engine_of(event.spec.get("resources") or {})
    change = LauncherChange(before=job.engine, last_launch=job.launch)
    return replace(
        job,
        spec_seq=job.seq,
        engine=engine,
        launcher_changes=(*job.launcher_changes, *([change] if engine is not job.engine else [])),
        min_nodes=event.spec.get("min_nodes"),
        micros_per_hour=event.micros_per_hour,
        placement=None,
        plan=None,
        pace=Pace(),
    )


def _resumed(job: Job, event: ResumeRequested, state: State) -> Job:
    """The resumed job. Guards count consecutive failures from zero again."""
    return replace(
        job,
        state=state,
        detail=event.reason,
        queued_at=event.at,
        stop_asked_at=None,
        tripped="",
        guard=None,
        launches_before_resume=job.launch,
        advanced_attempt=job.attempt,
        hopeless="",
        crashes=job.crashes.after_progress(),
        account=job.account.resumed(event.at),
    )


def _placed(job: Job, event: NodesReady, state: State, detail: str) -> Job:
    placed = replace(
        job,
        state=state,
        attempt=event.attempt,
        zone=event.zone,
        placed=True,
        nodes=event.nodes,
        groups=groups_of(job, event),
        node_changes=0,
        absent_nodes=event.absent_nodes,
        lost_nodes=(),
        preempted_nodes=(),
        drilled_nodes=(),
        pending_drills=drills_of_new_attempt(job, event.at),
        detail=detail,
        micros_per_hour=event.micros_per_hour,
        account=job.account.opened(
            event.at,
            event.attempt,
            tuple(RateSchedule.flat(event.at, part.micros_per_hour) for part in event.parts),
        ),
    )
    if placed.groups:
        known = sum(group.micros_per_hour for group in placed.groups)
        placed = replace(placed, micros_per_hour=known)
    if event.absent_nodes and not job.is_leaving:
        placed = replace(placed, detail=placed.lost_nodes_text)
    # The worker may have reported first.
    is_trained = state is State.STARTING and job.started_attempt == event.attempt
    return in_training(placed) if is_trained else placed


def _repriced(job: Job, event: PriceChanged) -> Job:
    """The job with the new price in its account. A price may arrive after the job has ended."""
    if not job.account.has_meter(event.attempt):
        raise IllegalTransition(
            f"{job.id}: the price of attempt {event.attempt} cannot change: it has no open meter"
        )
    changed = job.account.with_price_change(
        event.attempt, event.group, event.at, event.micros_per_hour
    )
    return replace(job, account=changed)


def _with_capacity_change(
    job: Job,
    event: CapacityLost | NodeLost | NodeReplaced,
    state: State,
    reason: str | None,
) -> Job:
    if isinstance(event, CapacityLost):
        return _lost(job, event, state, reason)
    return with_node_change(job, event, state)


def _lost(job: Job, event: CapacityLost, state: State, reason: str | None) -> Job:
    failed = event.cause is Cause.USER_ERROR
    # Nodes that were not replaced in time are counted already; the others are released for them.
    is_preemption = event.cause in PREEMPTION_CAUSES and not job.counted_nodes
    if is_preemption:
        job = with_preemption(job, event)
    return replace(
        job,
        state=state,
        placed=False,
        absent_nodes=(),
        lost_nodes=(),
        preempted_nodes=(),
        drilled_nodes=(),
        failures=job.failures + failed,
        failure=event.detail if failed else job.failure,
        crashes=job.crashes.after_loss(event),
        detail=reason or event.detail or event.cause.replace("_", " "),
        noticed=tuple(attempt for attempt in job.noticed if attempt > event.attempt),
        account=job.account.closed(event.at),
    )


def _ended(job: Job, event: Finished) -> Job:
    return replace(
        _released(job, event.at),
        state=TRANSITIONS[job.state, Finished],
        outcome=event.outcome,
        exit_code=event.exit_code,
        detail=event.detail,
        failures=job.failures + (event.outcome is Outcome.FAILED and event.exit_code is not None),
    )
