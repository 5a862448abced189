"""Views of throughput and of the expected end of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.api.schemas.throughput import EtaOut, RatesOut, ThroughputOut
from holdfast.api.schemas.workers import RemainingOut
from holdfast.domain.attempts import LatestPoint
from holdfast.domain.billing.bill import Bill, current_step
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.job import IN_TRAINING, Job
from holdfast.domain.metric_series import merge_segments
from holdfast.domain.throughput.eta import Eta, job_eta
from holdfast.domain.throughput.rates import RATE_METRICS, training_rates
from holdfast.services import Services
from holdfast.store.billing.job_summaries import JobSummary
from holdfast.store.queries import Reading


def newest_readings(services: Services, jobs: Sequence[Job]) -> Mapping[str, Reading]:
    """Read the newest runtime metrics of the jobs that train."""
    training = [job.id for job in jobs if job.state in IN_TRAINING]
    return services.queries.readings(training) if training else {}


def rates_view(reading: Reading | None) -> RatesOut | None:
    """Convert the rates in a reading; None without any."""
    found = training_rates(reading.values, reading.at) if reading else None
    return RatesOut.model_validate(found, from_attributes=True) if found else None


def mean_rates(services: Services, job: Job) -> RatesOut | None:
    """Return the means of the rates over all attempts; None without any."""
    values: dict[str, float | None] = {}
    for name in RATE_METRICS:
        pieces = services.series.segments(job.id, name, {}, 1)
        values[name] = merge_segments(pieces).mean if pieces else None
    found = training_rates(values)
    return RatesOut.model_validate(found, from_attributes=True) if found else None


def eta_of(services: Services, job: Job, digest: JobSummary, point: LatestPoint | None) -> Eta:
    """Return the expected end of a job, or why there is none."""
    now = services.clock.now()
    prior = services.markets.interruptions(digest.spec.engine, digest.spot_place, now)
    return job_eta(job, digest.history, point, prior, now)


def eta_view(eta: Eta) -> EtaOut:
    """Convert the expected end of a job."""
    if eta.estimate is None:
        return EtaOut(reason=eta.reason)
    found = eta.estimate
    return EtaOut(
        p10=found.p10,
        p50=found.p50,
        p90=found.p90,
        interruptions=found.interruptions,
        as_of=eta.as_of,
        is_planned=eta.is_planned,
    )


def remaining_view(services: Services, job: Job) -> RemainingOut | None:
    """Convert the expected end of a job to times from now; None without an estimate."""
    now = services.clock.now()
    digest, _ = services.job_summaries.get([job], now)[job.id]
    point = services.job_summaries.newest_points([job]).get(job.id)
    found = eta_of(services, job, digest, point).estimate
    if found is None:
        return None
    p10_s, p50_s, p90_s = ((end - now).total_seconds() for end in (found.p10, found.p50, found.p90))
    return RemainingOut(p10_s=p10_s, p50_s=p50_s, p90_s=p90_s)


def throughput_view(services: Services, job: Job) -> ThroughputOut:
    """Convert the throughput of a job over all its attempts."""
    digest, account = services.job_summaries.get([job], services.clock.now())[job.id]
    point = services.job_summaries.newest_points([job]).get(job.id)
    pace = job.pace if point is None else job.pace.until(job.attempt, point.step, point.at)
    return ThroughputOut(
        newest=rates_view(newest_readings(services, [job]).get(job.id)),
        mean=mean_rates(services, job),
        wall_steps_per_s=_wall_steps_per_s(services, job, digest, account),
        training_step_s=pace.step_s,
        eta=eta_view(eta_of(services, job, digest, point)),
    )


def _wall_steps_per_s(
    services: Services, job: Job, digest: JobSummary, account: Bill
) -> float | None:
    history = digest.history
    if history.first_training_at is None:
        return None
    end = digest.ended_at or services.clock.now()
    wall_s = (end - history.first_training_at).total_seconds()
    is_kept = history.training_since is not None or job.outcome is Outcome.SUCCEEDED
    newest = digest.newest_checkpoint
    saved = newest.step if newest else history.first_step
    step = current_step(job.attempt, job.step, account) if is_kept else saved
    return max(0, step - history.first_step) / wall_s if wall_s > 0 else None
