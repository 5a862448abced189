"""What a job is, computed from its facts.

    queued --LaunchRequested--> provisioning --NodesReady--> starting --TrainingStarted--> training
    starting | training --CapacityLost--> recovering --NodesReady--> starting
    recovering --LaunchRequested--> provisioning           (the launcher forgot it: a new launch key)
    any but ended --CancelRequested--> stopping            (absorbs what the launcher still does)
    any but ended --Finished--> ended                      (a cancel may lose the race)

Nothing else writes a state. Facts that a worker tells move the state only for the current attempt; otherwise they
annotate. Facts of the launcher that have no row here are a bug of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

from holdfast.domain.events import (
    CancelRequested,
    CapacityDenied,
    CapacityLost,
    Cause,
    CheckpointCommitted,
    CheckpointFailed,
    Event,
    Finished,
    LaunchRequested,
    NodesReady,
    Outcome,
    PreemptionNoticed,
    RestoreStarted,
    Submitted,
    TrainingStarted,
    WorkerLeft,
)
from holdfast.errors import IllegalTransition


class State(StrEnum):
    """Where a job is. `ended` is shown to people as its outcome."""

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    STARTING = "starting"
    TRAINING = "training"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    ENDED = "ended"


S = State
LIVE: Final = frozenset(State) - {S.ENDED}

TRANSITIONS: Final[Mapping[tuple[State, type[Event]], State]] = {
    (S.QUEUED, LaunchRequested): S.PROVISIONING,
    (S.RECOVERING, LaunchRequested): S.PROVISIONING,
    (S.PROVISIONING, CapacityDenied): S.PROVISIONING,
    (S.RECOVERING, CapacityDenied): S.RECOVERING,
    (S.STOPPING, CapacityDenied): S.STOPPING,
    (S.PROVISIONING, NodesReady): S.STARTING,
    (S.RECOVERING, NodesReady): S.STARTING,
    (S.STOPPING, NodesReady): S.STOPPING,
    (S.STARTING, TrainingStarted): S.TRAINING,
    # A launch can be lost before it ever had nodes.
    (S.PROVISIONING, CapacityLost): S.RECOVERING,
    (S.STARTING, CapacityLost): S.RECOVERING,
    (S.TRAINING, CapacityLost): S.RECOVERING,
    (S.STOPPING, CapacityLost): S.STOPPING,
    **{(state, CancelRequested): S.STOPPING for state in LIVE - {S.STOPPING}},
    **{(state, Finished): S.ENDED for state in LIVE},
}

COUNTED_AS_PREEMPTION: Final = frozenset({Cause.PREEMPTED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job after some prefix of its log; every field follows from the facts alone."""

    id: str
    seq: int
    """Number of the last fact; the next one is `seq + 1`."""
    name: str
    state: State
    submitted_at: datetime
    updated_at: datetime
    """Latest time of any fact, so that late facts do not turn it back."""
    outcome: Outcome | None = None
    """None until the job has ended."""
    exit_code: int | None = None
    """None until a program's end was told."""
    detail: str = ""
    """Why the job is stopping, recovering or ended, in words."""
    launch: int = 0
    """Number of the newest launch; 0 before the first."""
    attempt: int = 0
    """Number of placements so far, over all launches."""
    attempts_before_launch: int = 0
    denials: int = 0
    """Capacity denials recorded in the newest launch."""
    placed: bool = False
    """True while the nodes of the newest attempt stand, as far as was told."""
    started_attempt: int = 0
    """Newest attempt that told that it trains; it may be told before its nodes are."""
    step: int = 0
    """Newest step of the newest attempt that any fact has told."""
    total_steps: int | None = None
    """None until a worker said how far it goes."""
    last_checkpoint_step: int | None = None
    """Newest step that is safe in the store; None before the first checkpoint."""
    zone: str | None = None
    """Where the newest attempt stands or stood; None before the first."""
    preemptions: int = 0
    failures: int = 0
    """Attempts that ended by the user's own error."""
    resumes: int = 0
    """Attempts after the first that came to train again."""

    @property
    def launch_key(self) -> str:
        """The key under which the launcher knows the newest launch."""
        return f"{self.id}-{self.launch}"

    @property
    def placements(self) -> int:
        """Placements of the newest launch."""
        return self.attempt - self.attempts_before_launch

    @property
    def status(self) -> str:
        """The word that people see: the state, or the outcome once it has ended."""
        return self.outcome or self.state


def begin(job_id: str, event: Submitted) -> Job:
    """The job after its first fact."""
    return Job(
        id=job_id,
        seq=1,
        name=event.name,
        state=State.QUEUED,
        submitted_at=event.at,
        updated_at=event.at,
        detail="waiting for its first launch",
    )


def advance(job: Job, event: Event) -> Job:
    """The job after `event`.

    Raises:
        IllegalTransition: late or repeated facts must be filtered by the caller; here they are a bug.
    """
    job = replace(job, seq=job.seq + 1, updated_at=max(job.updated_at, event.at))
    match event:
        case (
            TrainingStarted()
            | CheckpointCommitted()
            | CheckpointFailed()
            | PreemptionNoticed()
            | RestoreStarted()
            | WorkerLeft()
        ):
            return _told(job, event)
        case Submitted():
            raise IllegalTransition(f"{job.id} was submitted already")
        case (
            LaunchRequested()
            | CapacityDenied()
            | NodesReady()
            | CapacityLost()
            | CancelRequested()
            | Finished()
        ):
            return _moved(job, event)
        case _:
            assert_never(event)


def fold(job_id: str, events: Iterable[Event]) -> Job:
    """The job after all of `events`, of which the first must be `Submitted`.

    Raises:
        IllegalTransition: the facts do not follow one another.
    """
    job: Job | None = None
    for event in events:
        if job is not None:
            job = advance(job, event)
        elif isinstance(event, Submitted):
            job = begin(job_id, event)
        else:
            raise IllegalTransition(
                f"{job_id} begins with {type(event).__name__} instead of Submitted"
            )
    if job is None:
        raise IllegalTransition(f"{job_id} has no facts")
    return job


def _moved(
    job: Job,
    event: LaunchRequested
    | CapacityDenied
    | NodesReady
    | CapacityLost
    | CancelRequested
    | Finished,
) -> Job:
    state = TRANSITIONS.get((job.state, type(event)))
    if state is None:
        raise IllegalTransition(f"{job.id} is {job.status}: {type(event).__name__} cannot follow")
    # Why somebody asked for the end stays in sight until it comes.
    told = job.detail if state is State.STOPPING else None
    match event:
        case LaunchRequested(launch=launch):
            return replace(
                job,
                state=state,
                launch=launch,
                attempts_before_launch=job.attempt,
                denials=0,
                detail="asking for nodes",
            )
        case CapacityDenied(zone=zone):
            return replace(
                job,
                state=state,
                denials=job.denials + 1,
                detail=told or f"no capacity in {zone}; still trying",
            )
        case NodesReady(attempt=attempt, zone=zone):
            if state is State.STARTING and job.started_attempt == attempt:
                state = TRANSITIONS[
                    State.STARTING, TrainingStarted
                ]  # The worker was quicker than the launcher.
            return replace(
                job, state=state, attempt=attempt, zone=zone, placed=True, detail=told or ""
            )
        case CapacityLost(cause=cause, detail=detail):
            return replace(
                job,
                state=state,
                placed=False,
                preemptions=job.preemptions + (cause in COUNTED_AS_PREEMPTION),
                failures=job.failures + (cause is Cause.USER_ERROR),
                detail=told or detail or cause.replace("_", " "),
            )
        case CancelRequested(reason=reason):
            return replace(job, state=state, detail=reason)
        case Finished():
            return _ended(job, event)
        case _:
            assert_never(event)


def _ended(job: Job, event: Finished) -> Job:
    return replace(
        job,
        state=TRANSITIONS[job.state, Finished],
        placed=False,
        outcome=event.outcome,
        exit_code=event.exit_code,
        detail=event.detail,
        failures=job.failures + (event.outcome is Outcome.FAILED and event.exit_code is not None),
    )


def _told(
    job: Job,
    event: TrainingStarted
    | CheckpointCommitted
    | CheckpointFailed
    | PreemptionNoticed
    | RestoreStarted
    | WorkerLeft,
) -> Job:
    current = event.attempt >= max(job.attempt, job.started_attempt)
    match event:
        case TrainingStarted(attempt=attempt, step=step, total_steps=total):
            if not current:
                return job
            moves = attempt == job.attempt and (job.state, TrainingStarted) in TRANSITIONS
            return replace(
                job,
                state=TRANSITIONS[job.state, TrainingStarted] if moves else job.state,
                detail="" if moves else job.detail,
                started_attempt=attempt,
                step=step,
                total_steps=total,
                resumes=job.resumes + (attempt > 1 and attempt > job.started_attempt),
            )
        case CheckpointCommitted(step=step):
            return replace(
                job,
                step=max(job.step, step) if current else job.step,
                last_checkpoint_step=max(job.last_checkpoint_step or 0, step),
            )
        case WorkerLeft(step=step) | PreemptionNoticed(step=step):
            return replace(job, step=max(job.step, step)) if current else job
        case CheckpointFailed() | RestoreStarted():
            return job
        case _:
            assert_never(event)
