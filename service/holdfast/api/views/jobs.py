"""Comparisons of jobs as the API shows them.

Jobs and events as the API shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from holdfast.api.schemas.diagnostics import ProofOut
from holdfast.api.schemas.jobs import (
    Can,
    EventOut,
    JobOut,
    LimitsOut,
    PointOut,
    TerminationNoticeOut,
)
from holdfast.api.views.checkpoints import tidying_view
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.billing.ledger import Bill, compute_bill, step_of
from holdfast.domain.checkpoints.history import CheckpointAttempt
from holdfast.domain.events import RunsCompared, Submitted, encode
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import gpus
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.commands import why_no_retry
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import begin
from holdfast.domain.jobs.reports import Point
from holdfast.ports import Preemptible
from holdfast.services import Services
from holdfast.store.billing.job_summaries import JobSummary
from holdfast.store.journal import Recorded
from holdfast.store.queries import Watch
from holdfast.store.retention_queue import RetentionStatus


def proof_view(fact: RunsCompared) -> ProofOut:
    """One comparison, as people see it."""
    return ProofOut.model_validate({**asdict(fact), "holds": fact.holds, "why": fact.why})


def job_views(services: Services, jobs: Sequence[Job]) -> list[JobOut]:
    """The jobs as people see them, with what they cost so far."""
    ids = [job.id for job in jobs]
    tidiness, watches = services.upkeep.of(ids), services.reading.watches(ids)
    digests = services.digests.of(jobs, services.clock.now())
    return [
        _job(
            services,
            job,
            *digests[job.id],
            watches.get(job.id, Watch(None, None)),
            tidiness=tidiness.get(job.id),
        )
        for job in jobs
    ]


NOT_ONES_OWN: Final = "it is another user's; its owner and admins of its project may remove it"


def as_allowed(views: Sequence[JobOut], caller: Caller) -> list[JobOut]:
    """The jobs with what this caller may do to each."""
    for view in views:
        if not caller.may(Action.STEER, view.project):
            no = Can(
                allowed=False, reason="your role in its project, or your token, is to look only"
            )
            view.can = dict.fromkeys(view.can, no)
        elif not caller.may_remove(view.project, view.owner or ""):
            view.can["remove"] = Can(allowed=False, reason=NOT_ONES_OWN)
    return list(views)


def submitted_view(services: Services, job_id: str) -> JobOut:
    """The job as it was when it was submitted: the same answer however often the request is repeated."""
    facts = services.journal.events(job_id)[:1]
    submitted = facts[0].event
    assert isinstance(submitted, Submitted)
    account = compute_bill([submitted], {}, submitted.at)
    tidiness = RetentionStatus() if job_id in services.upkeep.of([job_id]) else None
    job, digest = begin(job_id, submitted), JobSummary.of(facts, account, {})
    return _job(services, job, digest, account, Watch(None, None), tidiness=tidiness)


def _job(
    services: Services,
    job: Job,
    digest: JobSummary,
    account: Bill,
    watch: Watch,
    *,
    tidiness: RetentionStatus | None,
) -> JobOut:
    spec, newest, notice = digest.spec, digest.newest, digest.notice
    limits = job.limits or spec.holdfast.limits
    checkpoint = spec.holdfast.checkpoint
    return JobOut(
        id=job.id,
        name=job.name,
        state=job.status,
        detail=job.detail,
        project=job.project,
        owner=job.owner or None,
        from_job=checkpoint.from_job if checkpoint else None,
        engine=spec.engine,
        submitted_at=job.submitted_at,
        updated_at=job.updated_at,
        ended_at=digest.ended_at,
        step=step_of(job, account),
        total_steps=job.total_steps,
        attempt=job.attempt,
        zone=job.zone,
        nodes=spec.num_nodes,
        gpus=gpus(spec),
        preemptions=job.preemptions,
        resumes=job.resumes,
        failures=job.failures,
        max_failures=limits.max_failures,
        limits=LimitsOut.model_validate(limits.model_dump(mode="json")),
        guard=job.guard,
        last_checkpoint_step=newest.step if newest else None,
        saves=job.saving.interval.words if job.saving.interval else None,
        store_promise=job.saving.guarantee.words if job.saving.guarantee else None,
        last_checkpoint_at=newest.taken_at if newest else None,
        lost_steps=account.lost_steps,
        paid_micros=account.paid_micros,
        on_demand_micros=account.on_demand_micros,
        simulated=account.simulated,
        is_price_estimate=account.is_price_estimate,
        exit_code=job.exit_code,
        tags=dict(spec.holdfast.tags),
        notes=list(digest.submitted.notes),
        notice=TerminationNoticeOut(**asdict(notice)) if notice and job.placed else None,
        last_seen_at=watch.seen_at,
        trouble=watch.trouble,
        warning=_warning(job, tidiness),
        tidying=tidying_view(spec, tidiness),
        proof=proof_view(digest.proof) if digest.proof else None,
        can=_can(services, job, spec, newest),
    )


def _warning(job: Job, tidiness: RetentionStatus | None) -> str | None:
    """The job's own warning, and while it has not ended, that its store only grows."""
    trouble = tidiness.trouble if tidiness and job.state is not State.ENDED else None
    untidied = trouble and f"old checkpoints are not removed: {trouble}"
    return "; ".join(filter(None, (job.warning, untidied))) or None


def _can(
    services: Services, job: Job, spec: JobSpec, newest: CheckpointAttempt | None
) -> dict[str, Can]:
    return {
        "cancel": _unless("it has ended" if job.state is State.ENDED else None),
        "pause": _unless(commands.why_no_pause(job)),
        "resume": _unless(commands.why_no_resume(job)),
        "retry": _unless(why_no_retry(job, newest)),
        "limits": _unless(commands.why_no_limits(job)),
        "preempt": _unless(why_no_preemption(services, job, spec)),
        "remove": _unless(commands.why_no_removal(job)),
        "clone": _unless(None),
    }


def why_no_preemption(services: Services, job: Job, spec: JobSpec) -> str | None:
    """Why nodes of this job cannot be taken on purpose now; None when they can."""
    if not isinstance(services.launchers.get(spec.engine), Preemptible):
        return f"nodes of {spec.engine} are taken by their owner, not by us"
    if not job.placed:
        return f"it is {job.status}: no nodes stand"
    return None


def _unless(reason: str | None) -> Can:
    return Can(allowed=reason is None, reason=reason)


def event_view(fact: Recorded) -> EventOut:
    """One fact, its body as JSON."""
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
    """One point of a curve."""
    return PointOut(attempt=point.attempt, step=point.step, at=point.at, values=point.values)
