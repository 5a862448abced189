"""What events of workers change in a job: progress, notices, exits, and its state."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from holdfast.domain.events import (
    CheckpointCommitted,
    CheckpointFailed,
    GpuUnhealthy,
    LeftReason,
    NodesKept,
    PreemptionNoticed,
    RanksReplaced,
    RanksRestarted,
    RestoreStarted,
    RunDescribed,
    SavingFailed,
    TrainingStarted,
    WorkerFact,
    WorkerLeft,
)
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.node_changes import in_training, with_replaced_ranks
from holdfast.domain.jobs.transitions import TRANSITIONS


def apply_progress(job: Job, event: WorkerFact) -> Job:
    """The job after information that any attempt may report: progress, notices and exits."""
    attempt = event.attempt
    step = 0 if isinstance(event, RestoreStarted | RunDescribed | GpuUnhealthy) else event.step
    job = replace(job, saving=job.saving.after(event), pace=job.pace.after(event))
    if step > job.furthest_step:
        advanced = max(job.advanced_attempt, attempt)
        job = replace(job, furthest_step=step, advanced_attempt=advanced)
    if isinstance(event, WorkerLeft) and event.exited_early and attempt >= job.left_attempt:
        job = replace(job, left_attempt=attempt, hopeless=event.no_retry_reason)
    if isinstance(event, WorkerLeft):
        job = replace(job, crashes=job.crashes.after_worker_exit(event))
    if isinstance(event, RanksRestarted) and not event.node_lost:
        crashes, failures = job.crashes.after_restart(event), job.failures + 1
        job = replace(job, crashes=crashes, failures=failures, failure=event.detail)
    match event:
        case PreemptionNoticed() | WorkerLeft(reason=LeftReason.PREEMPTED):
            # While a job is leaving, Holdfast asked its worker to exit: that proves no preemption.
            stands = attempt > job.attempt or (job.placed and attempt == job.attempt)
            if stands and not job.is_leaving:
                job = replace(job, noticed=tuple(sorted({*job.noticed, attempt})))
        case _:
            pass
    return job


def apply_worker_event(job: Job, event: WorkerFact) -> Job:  # noqa: PLR0911 - one for each kind
    """The job after an event that concerns the state if it is of the current attempt."""
    current = event.attempt >= max(job.attempt, job.started_attempt)
    match event:
        case TrainingStarted(attempt=attempt, step=step, total_steps=total):
            if not current:
                return job
            moves = attempt == job.attempt and (job.state, TrainingStarted) in TRANSITIONS
            return replace(
                in_training(job) if moves else job,
                started_attempt=attempt,
                step=step,
                total_steps=total,
                resumes=job.resumes + (attempt > 1 and attempt > job.started_attempt),
            )
        case CheckpointCommitted(step=step):
            is_further = step > (job.last_checkpoint_step or 0)
            return replace(
                job,
                step=max(job.step, step) if current else job.step,
                last_checkpoint_step=max(job.last_checkpoint_step or 0, step),
                crashes=job.crashes.after_progress() if is_further else job.crashes,
            )
        case RanksRestarted(attempt=attempt, step=step):
            moves = attempt == job.attempt and (job.state, RanksRestarted) in TRANSITIONS
            return replace(
                job,
                state=TRANSITIONS[job.state, RanksRestarted] if moves else job.state,
                detail=f"the ranks start again: {event.detail}" if moves else job.detail,
                step=max(job.step, step) if current else job.step,
            )
        case RanksReplaced():
            return with_replaced_ranks(job, event) if current else job
        case NodesKept(until=until):
            kept = f"the program has failed; its nodes are kept and billed until {until:%H:%M} UTC"
            detail = f"{kept}: look into them with holdfast exec, or cancel the job"
            is_kept = job.placed and event.attempt == job.attempt and not job.is_leaving
            return replace(job, detail=detail) if is_kept else job
        case WorkerLeft(step=step) | PreemptionNoticed(step=step):
            return replace(job, step=max(job.step, step)) if current else job
        case (
            CheckpointFailed() | SavingFailed() | RestoreStarted() | RunDescribed() | GpuUnhealthy()
        ):
            return job
        case _:
            assert_never(event)
