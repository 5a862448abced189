"""Bills: where every millisecond and every micro-dollar of a job went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from fastapi import Response

from holdfast.api.bill_schemas import (
    AdjustmentOut,
    AttemptOut,
    BillOut,
    GroupOut,
    LossOut,
    PhasesOut,
    PriceStepOut,
    SentenceOut,
)
from holdfast.api.routing import Router
from holdfast.api.services import Services, The, TheJob
from holdfast.api.sheets import ALSO_CSV, AsCsv, seconds, sheet, text, usd
from holdfast.domain.events import CapacityLost
from holdfast.domain.job import Job
from holdfast.domain.ledger import AttemptBill, Bill, GroupBill, Phase, Reached, bill
from holdfast.domain.shares import shares_of
from holdfast.domain.tale import tale
from holdfast.store.journal import Recorded

router = Router(prefix="/v1")


@router.get("/jobs/{job_id}/attempts", response_model=list[AttemptOut], tags=["history"])
def list_attempts(job: TheJob, services: The) -> list[AttemptOut]:
    """Every attempt with its phases."""
    account, _ = job_bill(services, job)
    return [attempt_view(account, item) for item in account.attempts]


@router.get("/jobs/{job_id}/bill", response_model=BillOut, responses=ALSO_CSV, tags=["history"])
def show_bill(job: TheJob, services: The, as_csv: AsCsv) -> BillOut | Response:
    """Where every millisecond and every micro-dollar went; as CSV by attempt, zone and day."""
    account, facts = job_bill(services, job)
    return bill_sheet(job, account) if as_csv else bill_view(job, account, facts)


@router.get("/jobs/{job_id}/story", response_model=list[SentenceOut], tags=["history"])
def show_story(job: TheJob, services: The) -> list[SentenceOut]:
    """What happened and why, in sentences: how it stands, what it cost, then all in order."""
    account, facts = job_bill(services, job)
    told = tale(job, [fact.event for fact in facts], account)
    return [SentenceOut(at=sentence.at, text=sentence.text) for sentence in told]


def job_bill(services: Services, job: Job) -> tuple[Bill, list[Recorded]]:
    """The bill of one job, and the facts that it was folded from."""
    facts = services.journal.events(job.id)
    reached = services.reading.reached([job.id]).get(job.id, {})
    return bill_now(services, facts, reached), facts


def bill_now(services: Services, facts: Iterable[Recorded], reached: Mapping[int, Reached]) -> Bill:
    """The bill that follows from these facts, and from how far each attempt has come."""
    now = services.clock.now()
    return bill((fact.event for fact in facts), reached, now, with_rules=services.billing_rules)


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
        attempts=[attempt_view(account, item) for item in account.attempts],
        losses=[_loss(event, by_attempt[event.attempt]) for event in lost],
        waiting_ms=account.waiting_ms,
        paused_ms=account.paused_ms,
        ms=PhasesOut.of(account.ms),
        micros=PhasesOut.of(account.micros),
        provisioned_ms=account.ms.total,
        adjustments=[AdjustmentOut(**asdict(line)) for line in account.adjustments],
        adjusted_micros=account.adjusted_micros,
        paid_micros=account.paid_micros,
        on_demand_micros=account.on_demand_micros,
        wasted_micros=account.wasted_micros,
        saved_micros=account.saved_micros,
        goodput=account.goodput,
        goodput_with_waiting=account.goodput_with_waiting,
        lost_steps=account.lost_steps,
        simulated=account.simulated,
        is_price_estimate=account.is_price_estimate,
    )


def attempt_view(account: Bill, item: AttemptBill) -> AttemptOut:
    """One attempt of a bill."""
    return AttemptOut(
        attempt=item.attempt,
        zone=item.zone,
        nodes=item.nodes,
        cloud=item.cloud or None,
        instance_type=item.instance_type or None,
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
        paused_ms=item.paused_ms,
        ms=PhasesOut.of(item.ms),
        micros=PhasesOut.of(item.micros),
        paid_micros=item.micros.total,
        on_demand_micros=account.on_demand_of(item),
        groups=[_group(group) for group in item.groups],
        price_changes=[PriceStepOut(**asdict(step)) for step in item.price_changes],
    )


def bill_sheet(job: Job, account: Bill) -> Response:
    """The same as an answer."""
    return sheet(f"bill-{job.id}", *bill_table(job, account))


def bill_table(job: Job, account: Bill) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The bill by attempt, zone and day in UTC: a header, and rows. Each column adds up to what the bill says."""
    header = (
        *("job", "attempt", "zone", "day_utc", "waiting_s"),
        *(f"{phase}_s" for phase in Phase),
        *(f"{phase}_usd" for phase in Phase),
        *("adjusted_usd", "paid_usd", "on_demand_usd", "simulated", "estimate"),
    )
    rows = [
        (
            *(job.id, str(share.attempt or ""), text(share.zone), share.day.isoformat()),
            seconds(share.waiting_ms),
            *(seconds(getattr(share.ms, phase)) for phase in Phase),
            *(usd(getattr(share.micros, phase)) for phase in Phase),
            *(usd(share.adjusted_micros), usd(share.paid_micros), usd(share.on_demand_micros)),
            *(str(share.simulated).lower(), str(share.is_price_estimate).lower()),
        )
        for share in shares_of(account)
    ]
    return header, rows


def _group(group: GroupBill) -> GroupOut:
    return GroupOut(
        zone=group.zone,
        nodes=group.nodes,
        is_spot=group.is_spot,
        micros=PhasesOut.of(group.micros),
        paid_micros=group.micros.total,
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
