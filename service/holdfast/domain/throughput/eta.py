"""The expected end of a job, or why there is none. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.domain.attempts import LatestPoint
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.throughput.end_estimate import (
    EndEstimate,
    InterruptionPrior,
    RemainingWork,
    estimate_end,
)
from holdfast.domain.throughput.run_history import RunHistory

MIN_MEASURED_S: Final = 5.0
"""Training time before there is an estimate.
A lower value estimates by the first steps, which are slow; a higher value has none for longer."""
NO_TOTAL: Final = (
    "the script does not say how many steps it makes; write run.steps(loader, total=...)"
)
NOT_MEASURED: Final = "it has not trained long enough to time a step"
_NOT_RUNNING: Final = {
    State.ENDED: "it has ended",
    State.PAUSED: "it is paused",
    State.PAUSING: "it is being paused",
    State.STOPPING: "it is being stopped",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Eta:
    """The expected end of a job."""

    estimate: EndEstimate | None = None
    as_of: datetime | None = None
    """When it was made; None without an estimate."""
    is_planned: bool = False
    """Whether it is that of the job's plan, which knows when the job will wait."""
    reason: str = ""
    """Why there is no estimate; empty if there is one."""


def job_eta(
    job: Job,
    history: RunHistory,
    point: LatestPoint | None,
    prior: InterruptionPrior,
    now: datetime,
) -> Eta:
    """The expected end of a job; `point` is the newest one of its newest attempt."""
    if reason := _NOT_RUNNING.get(job.state):
        return Eta(reason=reason)
    if history.planned:
        forecast = history.planned.forecast
        planned = EndEstimate(
            p10=max(now, forecast.end_p10),
            p50=max(now, forecast.end_p50),
            p90=max(now, forecast.end_p90),
            interruptions=forecast.preemptions,
        )
        return Eta(estimate=planned, as_of=history.planned.at, is_planned=True)
    if job.total_steps is None:
        return Eta(reason=NO_TOTAL)
    work = _remaining_work(job, history, point, now)
    if work is None:
        return Eta(reason=NOT_MEASURED)
    return Eta(estimate=estimate_end(work, history, prior, now), as_of=now)


def _remaining_work(
    job: Job, history: RunHistory, point: LatestPoint | None, now: datetime
) -> RemainingWork | None:
    """None if no step was timed."""
    pace = job.pace if point is None else job.pace.until(job.attempt, point.step, point.at)
    if pace.step_s is None or pace.ms < MIN_MEASURED_S * 1000:
        return None
    assert job.total_steps is not None, "there is no estimate without a total"
    saved = max(job.last_checkpoint_step or 0, pace.restored_step, history.first_step)
    trains = history.training_since is not None and pace.since is not None
    step, since = (pace.from_step, pace.since) if trains else (saved, now)
    never_saved = job.last_checkpoint_step is None
    return RemainingWork(
        steps=max(0, job.total_steps - step),
        step_s=pace.step_s,
        measured_s=pace.ms / 1000,
        since=since or now,
        interval_s=job.total_steps * pace.step_s if never_saved else job.pace.interval_ms / 1000,
    )
