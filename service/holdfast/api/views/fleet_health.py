"""What unfinished jobs wait for, risk and still need, as the monitoring shows it.

Each figure covers all jobs, as a label for each would be unbounded: the longest time, or a number of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from holdfast.api.views.throughput import eta_of
from holdfast.domain.attempts import LatestPoint
from holdfast.domain.jobs.guards import waiting_since
from holdfast.domain.jobs.job import IN_TRAINING, LEAVING, Job, State
from holdfast.domain.jobs.plan_status import is_doubtful
from holdfast.services import Services
from holdfast.store.billing.job_summaries import MAX_CACHED_SUMMARIES, JobSummary

MAX_JOBS: Final = 10_000
"""Unfinished jobs that the figures cover, the oldest first. A lower value misses jobs of a large fleet; a higher value
makes each scrape slower."""
_INACTIVE: Final = LEAVING | {State.PAUSED}


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetHealth:
    """Figures of all unfinished jobs. A longest time is 0 if there is no such job."""

    wait_for_room_s: float = 0.0
    """Longest wait for room in quotas."""
    wait_for_nodes_s: float = 0.0
    """Longest wait for nodes that a launch has requested."""
    startup_s: float = 0.0
    """Longest time for which nodes have been there, and paid, without training."""
    silence_s: float = 0.0
    """Longest time without a report among the jobs in training."""
    unsaved_s: float = 0.0
    """Longest training time that the loss of its nodes would cost a job that saves checkpoints."""
    failing_saves: int = 0
    """Jobs whose newest checkpoints failed."""
    late: int = 0
    """Jobs that are expected to miss their deadline."""
    remaining_s: Sequence[float] = field(default_factory=tuple)
    """Expected time until the end of each job in training that has an estimate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """A job with nodes."""

    job: Job
    summary: JobSummary
    point: LatestPoint | None

    @property
    def started_at(self) -> datetime:
        """When its newest attempt, or the training of its ranks, began."""
        history = self.summary.history
        attempts = self.summary.live_bill.bill.attempts
        placed_at = attempts[-1].ready_at if attempts else self.job.submitted_at
        return max(placed_at, history.training_since or placed_at)

    @property
    def reported_at(self) -> datetime:
        """When it reported last."""
        return max(self.started_at, self.point.at) if self.point else self.started_at

    @property
    def saved_at(self) -> datetime:
        """Time of the state from which it would resume."""
        checkpoint = self.summary.newest_checkpoint
        saved_at = checkpoint.snapshot_at or checkpoint.at if checkpoint else None
        return max(self.started_at, saved_at) if saved_at else self.started_at


def fleet_health(services: Services) -> FleetHealth:
    """Compute the figures of all unfinished jobs."""
    now = services.clock.now()
    jobs = services.queries.unfinished(MAX_JOBS)
    active = [job for job in jobs if job.state not in _INACTIVE]
    runs = _runs(services, [job for job in active if job.placed][:MAX_CACHED_SUMMARIES], now)
    training = [run for run in runs if run.job.state in IN_TRAINING]
    saving = [run for run in training if run.summary.spec.holdfast.checkpoint]
    ends = {run.job.id: end for run in training if (end := _end(services, run))}
    waiting = services.journal.queue.state().waiting
    return FleetHealth(
        wait_for_room_s=_longest_s((entry.queued_at for entry in waiting), now),
        wait_for_nodes_s=_longest_s(_waits(active), now),
        startup_s=_longest_s((r.started_at for r in runs if r.job.state is State.STARTING), now),
        silence_s=_longest_s((run.reported_at for run in training), now),
        unsaved_s=_longest_s((run.saved_at for run in saving), now),
        failing_saves=sum(bool(job.saving.trouble) for job in jobs),
        late=sum(is_doubtful(job.plan) for job in active)
        + sum(_is_late(run, ends.get(run.job.id)) for run in training),
        remaining_s=[(end - now).total_seconds() for end in ends.values()],
    )


def _runs(services: Services, jobs: Sequence[Job], now: datetime) -> Sequence[_Run]:
    points = services.job_summaries.newest_points(jobs)
    found = services.job_summaries.without_bills(jobs, now)
    return [
        _Run(job=job, summary=found[job.id], point=points.get(job.id))
        for job in jobs
        if job.id in found
    ]


def _waits(jobs: Iterable[Job]) -> Iterator[datetime]:
    for job in jobs:
        if since := waiting_since(job):
            yield since


def _end(services: Services, run: _Run) -> datetime | None:
    """Expected end of a job; None without an estimate."""
    estimate = eta_of(services, run.job, run.summary, run.point).estimate
    return estimate.p50 if estimate else None


def _is_late(run: _Run, end: datetime | None) -> bool:
    """Whether a job without a plan is expected to end after its deadline."""
    limits = run.job.limits or run.summary.spec.holdfast.limits
    deadline = limits.deadline_at(run.job.submitted_at)
    if run.job.plan is not None or deadline is None or end is None:
        return False
    return end > deadline


def _longest_s(since: Iterable[datetime], now: datetime) -> float:
    return max((max(0.0, (now - moment).total_seconds()) for moment in since), default=0.0)
