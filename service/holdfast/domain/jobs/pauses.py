"""Pauses of a job: whether it may be paused for another one, and how a pause ends. Pure."""

from __future__ import annotations

from datetime import datetime

from holdfast.domain.events import CapacityType, Paused, PausedForPriority, Requeued
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.resource_options import uses_spot
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.jobs.commands import resume_command
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.transitions import LAUNCHED
from holdfast.domain.queue.priority_pauses import PriorityPause


def may_be_paused(job: Job, spec: JobSpec) -> bool:
    """Whether a running job may be paused for another one.

    Only one with spot nodes, whose work is saved, and without a deadline that the pause could make it miss: how long
    it will wait in the queue is unknown.
    """
    limits = job.limits or spec.holdfast.limits
    saves = spec.holdfast.checkpoint is not None and not job.saving.trouble
    return job.state in LAUNCHED and saves and limits.deadline is None and _has_spot(job, spec)


def _has_spot(job: Job, spec: JobSpec) -> bool:
    """Whether the job can have no other nodes than spot nodes.

    A planned launch asks for one capacity type. On Slurm, a partition has spot nodes only if the file says so.
    """
    if job.placement is not None:
        return job.placement.capacity is CapacityType.SPOT
    match spec.engine:
        case Engine.SLURM:
            return all(option.options.get("use_spot") is True for option in spec.options)
        case Engine.SKYPILOT | Engine.LOCAL:
            return all(uses_spot(option) for option in spec.options)


def priority_pause(
    job: Job, pause: PriorityPause | None, now: datetime
) -> PausedForPriority | None:
    """The event of a pause that the queue has chosen; None if the job does not run."""
    if pause is None or job.state not in LAUNCHED:
        return None
    return PausedForPriority(at=now, for_job=pause.for_job, priority=pause.priority)


def pause_end(
    job: Job, at: datetime, limits: Limits, *, has_store: bool
) -> tuple[Paused | Requeued, ...]:
    """The events at the end of a pause, when the nodes are gone.

    The job waits for a user, or in the queue if it was paused for another one. Only jobs that save are paused for others.
    """
    if job.paused_for:
        return Paused(at=at, detail=job.detail), Requeued(at=at, for_job=job.paused_for)
    lost = "" if has_store else "; without a checkpoint store the job restarts at step 0"
    return (Paused(at=at, detail=f"{job.detail}; {resume_command(job, limits)}{lost}"),)
