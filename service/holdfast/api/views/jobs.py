"""Views of jobs, events, points and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from holdfast.api.schemas.diagnostics import ProofOut
from holdfast.api.schemas.jobs import (
    Can,
    EventOut,
    JobGroupOut,
    JobOut,
    LimitsOut,
    PointOut,
    TerminationNoticeOut,
)
from holdfast.api.views.checkpoints import retention_view
from holdfast.api.views.throughput import eta_of, eta_view, newest_readings, rates_view
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.billing.bill import Bill, compute_bill, current_step
from holdfast.domain.checkpoints.history import CheckpointAttempt
from holdfast.domain.events import RunsCompared, Submitted, encode
from holdfast.domain.jobfile.spec import JobSpec, launcher_name
from holdfast.domain.jobfile.spot_safety import accelerator_count
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.commands import retry_refusal
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import create_job
from holdfast.domain.jobs.reports import Point
from holdfast.domain.queue.admission import evaluate
from holdfast.ports import Preemptible
from holdfast.services import Services
from holdfast.store.billing.job_summaries import JobSummary
from holdfast.store.journal import RecordedEvent
from holdfast.store.queries import LastObservation
from holdfast.store.retention_queue import RetentionStatus


def proof_view(fact: RunsCompared) -> ProofOut:
    """Convert one comparison."""
    return ProofOut.model_validate(
        {**asdict(fact), "holds": fact.is_equivalent, "why": fact.explanation}
    )


def job_views(services: Services, jobs: Sequence[Job]) -> list[JobOut]:
    """Convert jobs with their costs so far."""
    ids, jobs = [job.id for job in jobs], with_queue_reasons(services, jobs)
    retention, watches = (
        services.retention_queue.statuses(ids),
        services.queries.last_observations(ids),
    )
    digests = services.job_summaries.get(jobs, services.clock.now())
    running = [job for job in jobs if job.state is not State.ENDED]
    points = services.job_summaries.newest_points(running)
    readings = newest_readings(services, running)
    views = []
    for job in jobs:
        watch = watches.get(job.id, LastObservation(None, None))
        view = _job(services, job, *digests[job.id], watch, retention=retention.get(job.id))
        view.rates = rates_view(readings.get(job.id))
        view.eta = eta_view(eta_of(services, job, digests[job.id][0], points.get(job.id)))
        views.append(view)
    return views


def with_queue_reasons(services: Services, jobs: Sequence[Job]) -> Sequence[Job]:
    """Add to waiting jobs what they wait for in the queue, as their detail."""
    if not any(job.state is State.QUEUED for job in jobs):
        return jobs
    places = {place.entry.job_id: place for place in evaluate(services.journal.queue.state())}
    reasons = {job_id: place.reason for job_id, place in places.items() if place.reason}
    return [replace(job, detail=reasons.get(job.id, job.detail)) for job in jobs]


NOT_OWNER: Final = "it belongs to another user; its owner and admins of its project may remove it"


def with_permissions(views: Sequence[JobOut], caller: Caller) -> list[JobOut]:
    """Add the caller's permissions to each job."""
    for view in views:
        if not caller.may(Action.STEER, view.project):
            no = Can(
                allowed=False, reason="your role in its project, or your token, allows only reading"
            )
            view.can = dict.fromkeys(view.can, no)
        elif not caller.may_remove(view.project, view.owner or ""):
            view.can["remove"] = Can(allowed=False, reason=NOT_OWNER)
    return list(views)


def submitted_view(services: Services, job_id: str) -> JobOut:
    """Convert a job as it was at its submission.

    So a repeated request has the same response.
    """
    facts = services.journal.events(job_id)[:1]
    submitted = facts[0].event
    assert isinstance(submitted, Submitted)
    account = compute_bill([submitted], {}, submitted.at)
    retention = RetentionStatus() if job_id in services.retention_queue.statuses([job_id]) else None
    job, digest = create_job(job_id, submitted), JobSummary.from_events(facts, account, {})
    return _job(services, job, digest, account, LastObservation(None, None), retention=retention)


def _job(
    services: Services,
    job: Job,
    digest: JobSummary,
    account: Bill,
    watch: LastObservation,
    *,
    retention: RetentionStatus | None,
) -> JobOut:
    spec, newest, notice = digest.spec, digest.newest_checkpoint, digest.notice
    limits, checkpoint = job.limits or spec.holdfast.limits, spec.holdfast.checkpoint
    return JobOut(
        id=job.id,
        name=job.name,
        state=job.status,
        detail=job.detail,
        **_membership(job),
        from_job=checkpoint.from_job if checkpoint else None,
        engine=spec.engine,
        submitted_at=job.submitted_at,
        updated_at=job.updated_at,
        ended_at=digest.ended_at,
        step=current_step(job.attempt, job.step, account),
        total_steps=job.total_steps,
        attempt=job.attempt,
        zone=job.zone,
        nodes=spec.num_nodes,
        min_nodes=spec.min_nodes,
        groups=_groups(spec),
        is_planned=spec.holdfast.plan is not None,
        gpus=accelerator_count(spec),
        priority=job.priority,
        preemptions=job.preemptions,
        drills=job.drills,
        resumes=job.resumes,
        failures=job.failures,
        max_failures=limits.max_failures,
        limits=LimitsOut.model_validate(limits.model_dump(mode="json")),
        guard=job.guard,
        last_checkpoint_step=newest.step if newest else None,
        saves=job.saving.interval.description if job.saving.interval else None,
        store_promise=job.saving.guarantee.description if job.saving.guarantee else None,
        last_checkpoint_at=newest.snapshot_at if newest else None,
        lost_steps=account.lost_steps,
        paid_micros=account.paid_micros,
        on_demand_micros=account.on_demand_micros,
        simulated=account.simulated,
        is_price_estimate=account.is_price_estimate,
        exit_code=job.exit_code,
        tags=dict(job.tags),
        notes=list(digest.submitted.notes),
        notice=TerminationNoticeOut(**asdict(notice)) if notice and job.placed else None,
        last_seen_at=watch.seen_at,
        trouble=watch.error,
        warning=_warning(job, retention),
        tidying=retention_view(spec, retention),
        proof=proof_view(digest.proof) if digest.proof else None,
        can=_can(services, job, spec, newest),
    )


def _membership(job: Job) -> dict[str, Any]:
    return {"project": job.project, "owner": job.owner or None, "sweep": job.sweep or None}


def _groups(spec: JobSpec) -> list[JobGroupOut]:
    return [JobGroupOut(name=group.name, nodes=group.num_nodes) for group in spec.holdfast.groups]


def _warning(job: Job, retention: RetentionStatus | None) -> str | None:
    """Return the job's own warning, or while it runs, that old checkpoints are not deleted."""
    trouble = retention.error if retention and job.state is not State.ENDED else None
    untidied = trouble and f"old checkpoints are not deleted: {trouble}"
    return "; ".join(filter(None, (job.warning, untidied))) or None


def _can(
    services: Services, job: Job, spec: JobSpec, newest: CheckpointAttempt | None
) -> dict[str, Can]:
    return {
        "cancel": _can_unless("it has ended" if job.state is State.ENDED else None),
        "pause": _can_unless(commands.pause_refusal(job)),
        "resume": _can_unless(commands.resume_refusal(job)),
        "retry": _can_unless(retry_refusal(job, newest)),
        "limits": _can_unless(commands.limits_refusal(job)),
        "preempt": _can_unless(preemption_refusal(services, job, spec)),
        "remove": _can_unless(commands.removal_refusal(job)),
        "clone": _can_unless(None),
    }


def preemption_refusal(services: Services, job: Job, spec: JobSpec) -> str | None:
    """Return why nodes of this job cannot be preempted on request now; None if they can."""
    launcher = services.launchers.get(spec.engine)
    if not isinstance(launcher, Preemptible) and (launcher is None or launcher.saves_on_cancel):
        return f"the {launcher_name(spec.engine)} launcher does not support preemption on request"
    if not job.placed:
        return (
            "it has ended" if job.state is State.ENDED else f"it is {job.status} and has no nodes"
        )
    return f"it is {job.status}" if job.is_leaving else None


def _can_unless(reason: str | None) -> Can:
    return Can(allowed=reason is None, reason=reason)


def event_view(fact: RecordedEvent) -> EventOut:
    """Convert an event, its body as JSON."""
    return EventOut(
        cursor=fact.cursor,
        job_id=fact.job_id,
        seq=fact.seq,
        kind=fact.kind,
        source=fact.source,
        at=fact.event.at,
        recorded_at=fact.recorded_at,
        body=encode(fact.event),
    )


def point_view(point: Point) -> PointOut:
    """Convert a point of a metric series."""
    return PointOut(attempt=point.attempt, step=point.step, at=point.at, values=point.values)
