"""Jobs, bills and events as the API shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from holdfast.api.checkpoint_views import tidying_view, told
from holdfast.api.schemas import (
    AttemptOut,
    BillOut,
    Can,
    EventOut,
    JobOut,
    LossOut,
    PhasesOut,
    PointOut,
)
from holdfast.api.services import Services
from holdfast.domain.events import CapacityLost, Submitted, encode
from holdfast.domain.job import Job, State
from holdfast.domain.ledger import AttemptBill, Bill, Phases, bill
from holdfast.domain.lifecycle import begin
from holdfast.domain.reports import Point
from holdfast.domain.spec import JobSpec
from holdfast.ports import Preemptible
from holdfast.store.journal import Recorded
from holdfast.store.reading import Watch
from holdfast.store.upkeep import Tidiness


def job_views(services: Services, jobs: Sequence[Job]) -> list[JobOut]:
    """The jobs as people see them, with what they cost so far."""
    ids = [job.id for job in jobs]
    facts, reached = services.reading.facts(ids), services.reading.reached(ids)
    tidiness = services.upkeep.of(ids)
    now = services.clock.now()
    return [
        _job(
            services,
            job,
            facts[job.id],
            bill((f.event for f in facts[job.id]), reached.get(job.id, {}), now),
            services.reading.watch(job.id),
            tidiness=tidiness.get(job.id),
        )
        for job in jobs
    ]


def submitted_view(services: Services, job_id: str) -> JobOut:
    """The job as it was when it was submitted: the same answer however often the request is repeated."""
    facts = services.journal.events(job_id)[:1]
    submitted = facts[0].event
    assert isinstance(submitted, Submitted)
    account = bill([submitted], {}, submitted.at)
    tidiness = Tidiness() if job_id in services.upkeep.of([job_id]) else None
    return _job(
        services, begin(job_id, submitted), facts, account, Watch(None, None), tidiness=tidiness
    )


def job_bill(services: Services, job: Job) -> tuple[Bill, list[Recorded]]:
    """The bill of one job, and the facts that it was folded from."""
    facts = services.journal.events(job.id)
    reached = services.reading.reached([job.id]).get(job.id, {})
    return bill((fact.event for fact in facts), reached, services.clock.now()), facts


def _job(
    services: Services,
    job: Job,
    facts: Sequence[Recorded],
    account: Bill,
    watch: Watch,
    *,
    tidiness: Tidiness | None,
) -> JobOut:
    submitted = facts[0].event
    assert isinstance(submitted, Submitted)
    spec = JobSpec.model_validate(submitted.spec)
    current = account.attempts[-1] if account.attempts else None
    # A point may be newer than any fact of the attempt that stands.
    step = (
        max(job.step, current.last_step or 0)
        if current and current.attempt == job.attempt
        else job.step
    )
    newest = told(facts).newest()
    return JobOut(
        id=job.id,
        name=job.name,
        state=job.status,
        detail=job.detail,
        engine=spec.engine,
        submitted_at=job.submitted_at,
        updated_at=job.updated_at,
        step=step,
        total_steps=job.total_steps,
        attempt=job.attempt,
        zone=job.zone,
        preemptions=job.preemptions,
        resumes=job.resumes,
        failures=job.failures,
        max_failures=spec.holdfast.limits.max_failures,
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
        notes=list(submitted.notes),
        last_seen_at=watch.seen_at,
        trouble=watch.trouble,
        warning=job.warning or None,
        tidying=tidying_view(spec, tidiness),
        can=_can(services, job, spec),
    )


def _can(services: Services, job: Job, spec: JobSpec) -> dict[str, Can]:
    return {
        "cancel": _unless("it has ended" if job.state is State.ENDED else None),
        "preempt": _unless(why_no_preemption(services, job, spec)),
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


def bill_view(job: Job, account: Bill, facts: Iterable[Recorded]) -> BillOut:
    """The bill, with every loss of nodes on a line of its own."""
    by_attempt = {item.attempt: item for item in account.attempts}
    lost = [
        fact.event
        for fact in facts
        if isinstance(fact.event, CapacityLost) and fact.event.attempt in by_attempt
    ]
    return BillOut(
        job_id=job.id,
        until=account.until,
        attempts=[attempt_view(item) for item in account.attempts],
        losses=[_loss(event, by_attempt[event.attempt]) for event in lost],
        waiting_ms=account.waiting_ms,
        ms=_phases(account.ms),
        micros=_phases(account.micros),
        provisioned_ms=account.ms.total,
        paid_micros=account.paid_micros,
        on_demand_micros=account.on_demand_micros,
        wasted_micros=account.wasted_micros,
        saved_micros=account.saved_micros,
        lost_steps=account.lost_steps,
        simulated=account.simulated,
        is_price_estimate=account.is_price_estimate,
    )


def attempt_view(item: AttemptBill) -> AttemptOut:
    """One attempt of a bill."""
    return AttemptOut(
        attempt=item.attempt,
        zone=item.zone,
        nodes=item.nodes,
        ready_at=item.ready_at,
        ended_at=item.ended_at,
        cause=item.cause,
        simulated=item.simulated,
        price_source=item.price_source or None,
        price_as_of=item.price_as_of,
        is_price_estimate=item.is_price_estimate,
        first_step=item.first_step,
        last_step=item.last_step,
        lost_steps=item.lost_steps,
        notice_s=item.notice_s,
        waiting_ms=item.waiting_ms,
        ms=_phases(item.ms),
        micros=_phases(item.micros),
        paid_micros=item.micros.total,
    )


def _loss(event: CapacityLost, item: AttemptBill) -> LossOut:
    return LossOut(
        attempt=item.attempt,
        at=event.at,
        cause=event.cause,
        zone=item.zone,
        notice_s=item.notice_s,
        lost_steps=item.lost_steps,
        lost_ms=item.ms.lost,
        lost_micros=item.micros.lost,
    )


def _phases(phases: Phases) -> PhasesOut:
    return PhasesOut(**asdict(phases))


def event_view(fact: Recorded) -> EventOut:
    """One fact, its body as JSON."""
    return EventOut(
        cursor=fact.cursor,
        job_id=fact.job_id,
        seq=fact.seq,
        kind=fact.kind,
        source=fact.event.source,
        at=fact.event.at,
        recorded_at=fact.recorded_at,
        body=encode(fact.event),
    )


def point_view(point: Point) -> PointOut:
    """One point of a curve."""
    return PointOut(attempt=point.attempt, step=point.step, at=point.at, values=point.values)
