"""Pauses of a job for others of a higher priority: whether it may be paused, and how. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from holdfast.domain.events import CapacityType, Paused, PausedForPriority, Requeued
from holdfast.domain.jobfile.resource_options import uses_spot
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.transitions import LAUNCHED
from holdfast.domain.queue.priority_pauses import PriorityPause


def may_be_paused(job: Job, spec: JobSpec) -> bool:
    """Whether a running job may be paused for another one.

    Only one with spot nodes, whose work is saved, and without a deadline that the pause could make it miss.
    """
    limits = job.limits or spec.holdfast.limits
    saves = spec.holdfast.checkpoint is not None and not job.saving.trouble
    return job.state in LAUNCHED and saves and limits.deadline is None and _has_spot(job, spec)


def _has_spot(job: Job, spec: JobSpec) -> bool:
    if job.placement is not None:
        return job.placement.capacity is CapacityType.SPOT
    if spec.engine is Engine.SLURM:  # Its partitions have spot nodes only if the file says so.
        return all(option.options.get("use_spot") is True for option in spec.options)
    return all(uses_spot(option) for option in spec.options)


def priority_pause(
    job: Job, pause: PriorityPause | None, now: datetime
) -> PausedForPriority | None:
    """The event of a pause that the queue has chosen; None if the job does not run."""
    if pause is None or job.state not in LAUNCHED:
        return None
    return PausedForPriority(at=now, for_job=pause.for_job, priority=pause.priority)


def requeued(job: Job, paused: Paused) -> tuple[Paused | Requeued, ...]:
    """The end of a pause. A job that was paused for another one waits in the queue."""
    if not job.paused_for:
        return (paused,)
    return replace(paused, detail=job.detail), Requeued(at=paused.at, for_job=job.paused_for)
