"""Bills of single jobs, and total costs of all jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Final

from fastapi import Query, Response

from holdfast.api.auth.authentication import TheCaller
from holdfast.api.csv_export import CSV_RESPONSE, AsCsv, csv_response, seconds, text, usd
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.billing import (
    AdjustmentOut,
    AttemptOut,
    BillOut,
    ChargeOut,
    ChargesOut,
    ChargeSumsOut,
    CostOut,
    CostsOut,
    GroupOut,
    GroupSpanOut,
    NodeGroupOut,
    NodeLossOut,
    PhasesOut,
    PriceStepOut,
    SentenceOut,
)
from holdfast.api.time_ranges import TheTimeRange
from holdfast.api.views.jobs import with_queue_reasons
from holdfast.domain.billing.allocation import allocate_costs
from holdfast.domain.billing.bill import (
    AttemptBill,
    Bill,
    GroupBill,
    LatestPoint,
    compute_bill,
)
from holdfast.domain.billing.group_timeline import (
    GroupSpan,
    GroupState,
    GroupTimeline,
    group_timelines,
)
from holdfast.domain.billing.phases import Phase
from holdfast.domain.billing.rate import to_ms, to_time
from holdfast.domain.charges.charges import (
    Category,
    Charges,
    compute_charges,
    store_url,
)
from holdfast.domain.diagnostics.timeline import timeline
from holdfast.domain.events import PREEMPTION_CAUSES, CapacityLost, Cause, Event, NodeLost
from holdfast.domain.jobs.job import Job
from holdfast.errors import BadRequest
from holdfast.services import Services
from holdfast.store.billing.cost_request import CostRequest, GroupBy
from holdfast.store.billing.costs import CostReport, CostTotal
from holdfast.store.journal import RecordedEvent

bills_router = Router(prefix="/v1")

CHARGE_COLUMNS: Final = ("category", "item", "place", "quantity", "unit", "unit_usd", "amount_usd")
"""The last columns of a bill as a table."""


@bills_router.get("/jobs/{job_id}/attempts", response_model=list[AttemptOut], tags=["history"])
def list_attempts(job: TheJob, services: TheServices) -> list[AttemptOut]:
    """List every attempt with its phases."""
    account, _ = job_bill(services, job)
    return [attempt_view(account, item) for item in account.attempts]


@bills_router.get(
    "/jobs/{job_id}/bill", response_model=BillOut, responses=CSV_RESPONSE, tags=["history"]
)
def show_bill(job: TheJob, services: TheServices, as_csv: AsCsv) -> BillOut | Response:
    """Show the bill: every millisecond and micro-dollar; as CSV by attempt, zone and day."""
    account, facts = job_bill(services, job)
    charges = job_charges(services, job, account, [fact.event for fact in facts])
    if as_csv:
        return csv_response(f"bill-{job.id}", *bill_table(job, account, charges))
    shown = bill_view(job, account, facts)
    total = account.paid_micros + charges.micros
    return shown.model_copy(update={"charges": charges_view(charges), "total_micros": total})


@bills_router.get("/jobs/{job_id}/story", response_model=list[SentenceOut], tags=["history"])
def show_story(job: TheJob, services: TheServices) -> list[SentenceOut]:
    """Show the history of a job in sentences: its state, its cost, then all events in order."""
    account, facts = job_bill(services, job)
    [shown] = with_queue_reasons(services, [job])
    sentences = timeline(shown, [fact.event for fact in facts], account)
    return [SentenceOut(at=sentence.at, text=sentence.text) for sentence in sentences]


def job_bill(services: Services, job: Job) -> tuple[Bill, list[RecordedEvent]]:
    """Return the bill of one job and the events that it was computed from."""
    facts = services.journal.events(job.id)
    reached = services.queries.latest_points([job.id]).get(job.id, {})
    return bill_now(services, facts, reached), facts


def bill_now(
    services: Services, facts: Iterable[RecordedEvent], reached: Mapping[int, LatestPoint]
) -> Bill:
    """Compute the current bill from events and the progress of each attempt."""
    now = services.clock.now()
    return compute_bill(
        (fact.event for fact in facts), reached, now, with_rules=services.billing_rules
    )


def job_charges(services: Services, job: Job, account: Bill, facts: Sequence[Event]) -> Charges:
    """Return the charges of a job beside its bill, which was computed from the same events."""
    known = services.retention_queue.known_store(job.id, store_url(facts))
    now = services.clock.now()
    return compute_charges(account, facts, services.resource_prices, now, known)


def charges_view(charges: Charges) -> ChargesOut:
    """Convert charges."""
    return ChargesOut(
        until=charges.until,
        store_place=charges.store_place or None,
        lines=[
            ChargeOut(
                category=line.category,
                item=line.item,
                place=line.place or None,
                quantity=line.units,
                unit=line.unit,
                unit_micros=line.unit_micros,
                micros=None if line.unit_micros is None else line.micros,
            )
            for line in charges.lines
        ],
        micros=charges.micros,
        has_unpriced=charges.has_unpriced,
        prices_source=charges.prices_source,
        prices_as_of=charges.prices_as_of,
        warning=charges.warning or None,
    )


def bill_view(job: Job, account: Bill, facts: Iterable[RecordedEvent]) -> BillOut:
    """Convert a bill, with one line for each capacity loss and each loss of a single node."""
    by_attempt = {item.attempt: item for item in account.attempts}
    lost = [
        fact.event
        for fact in facts
        if isinstance(fact.event, CapacityLost | NodeLost) and fact.event.attempt in by_attempt
    ]
    lost = [event for event in lost if isinstance(event, CapacityLost) or _is_loss(event)]
    return BillOut(
        job_id=job.id,
        until=account.until,
        attempts=[attempt_view(account, item) for item in account.attempts],
        losses=[_loss(event, by_attempt[event.attempt]) for event in lost],
        groups=[_timeline(group) for group in group_timelines(account)],
        waiting_ms=account.waiting_ms,
        paused_ms=account.paused_ms,
        ms=PhasesOut.from_phases(account.ms),
        micros=PhasesOut.from_phases(account.micros),
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
    """Convert one attempt of a bill."""
    return AttemptOut(
        attempt=item.attempt,
        zone=item.zone,
        nodes=item.nodes,
        cloud=item.cloud or None,
        instance_type=item.instance_type or None,
        ready_at=item.ready_at,
        ended_at=item.ended_at,
        cause=item.cause,
        drill=item.is_drill,
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
        degraded_ms=item.degraded_ms,
        ms=PhasesOut.from_phases(item.ms),
        starts=[PhasesOut.from_phases(ms) for ms in item.starts_ms],
        micros=PhasesOut.from_phases(item.micros),
        paid_micros=item.micros.total,
        on_demand_micros=account.on_demand_share(item),
        groups=[_group(group) for group in item.groups],
        price_changes=[PriceStepOut(**asdict(step)) for step in item.price_changes],
    )


def bill_table(
    job: Job, account: Bill, charges: Charges | None = None
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the header and rows of a bill by attempt, zone and UTC day, and of its charges.

    Each column adds up to the bill's total.
    """
    header = (
        *("job", "attempt", "zone", "day_utc", "waiting_s"),
        *(f"{phase}_s" for phase in Phase),
        *(f"{phase}_usd" for phase in Phase),
        *("adjusted_usd", "paid_usd", "on_demand_usd", "simulated", "estimate"),
        *CHARGE_COLUMNS,
    )
    rows = [
        (
            *(job.id, str(share.attempt or ""), text(share.zone), share.day.isoformat()),
            seconds(share.waiting_ms),
            *(seconds(getattr(share.ms, phase)) for phase in Phase),
            *(usd(getattr(share.micros, phase)) for phase in Phase),
            *(usd(share.adjusted_micros), usd(share.paid_micros), usd(share.on_demand_micros)),
            *(str(share.simulated).lower(), str(share.is_price_estimate).lower()),
            *("nodes", "", "", "", "", "", usd(share.paid_micros)),
        )
        for share in allocate_costs(account)
    ]
    nothing = [seconds(0)] * (1 + len(Phase)) + [usd(0)] * (len(Phase) + 3)
    day = charges.until.date().isoformat() if charges else ""
    rows += [
        (job.id, "", "", day, *nothing, "false", "false", *cells)
        for cells in _charge_cells(charges)
    ]
    return header, rows


def _charge_cells(charges: Charges | None) -> Iterator[Sequence[str]]:
    """The cells of `CHARGE_COLUMNS` of each line; an amount is empty if no price is known."""
    for line in charges.lines if charges else ():
        known = line.unit_micros is not None
        yield (
            *(line.category, text(line.item), text(line.place), line.units, line.unit),
            *(usd(line.unit_micros or 0) if known else "", usd(line.micros) if known else ""),
        )


def _group(group: GroupBill) -> GroupOut:
    return GroupOut(
        name=group.name,
        zone=group.zone,
        nodes=group.nodes,
        is_spot=group.is_spot,
        micros=PhasesOut.from_phases(group.micros),
        paid_micros=group.micros.total,
    )


def _timeline(group: GroupTimeline) -> NodeGroupOut:
    return NodeGroupOut(
        name=group.name,
        nodes=group.nodes,
        preemptions=group.preemptions,
        running_ms=group.total_ms(GroupState.RUNNING),
        missing_ms=group.total_ms(GroupState.MISSING),
        paid_micros=group.micros,
        spans=[_span(span) for span in group.spans],
    )


def _span(span: GroupSpan) -> GroupSpanOut:
    return GroupSpanOut(
        state=span.state,
        attempt=span.attempt,
        last_attempt=span.last_attempt,
        since=to_time(span.begin_ms),
        until=None if span.is_open else to_time(span.end_ms),
        zone=span.placed.zone if span.placed else None,
        cloud=span.cloud or None,
        instance_type=span.instance_type or None,
        is_spot=span.placed.is_spot if span.placed else None,
        micros_per_hour=span.micros_per_hour,
        paid_micros=span.micros,
        cause=span.cause,
        drill=span.is_drill,
    )


def _is_loss(event: NodeLost) -> bool:
    """Whether a loss has a line of its own: not with another node, nor at the program's end."""
    return event.with_node is None and event.cause is not Cause.ENDED


def _loss(event: CapacityLost | NodeLost, item: AttemptBill) -> NodeLossOut:
    if isinstance(event, NodeLost):
        return _node_loss(event, item)
    lost_ms, lost_micros = item.final_loss()
    first = item.groups[0]
    return NodeLossOut(
        attempt=item.attempt,
        at=event.at,
        cause=event.cause,
        drill=event.drill,
        group=first.name if event.cause in PREEMPTION_CAUSES else "",
        zone=_zone_before(event, item, first),
        notice_s=item.notice_s,
        lost_steps=item.final_lost_steps,
        lost_ms=lost_ms,
        lost_micros=lost_micros,
    )


def _node_loss(event: NodeLost, item: AttemptBill) -> NodeLossOut:
    """The loss of a node after which the others continue with their steps."""
    replaced = next((x.replaced for x in item.node_losses if x.lost == event), None)
    return NodeLossOut(
        attempt=item.attempt,
        node=event.node,
        group=item.groups[event.group].name,
        replaced_after_ms=to_ms(replaced.at) - to_ms(event.at) if replaced else None,
        at=event.at,
        cause=event.cause,
        drill=event.drill,
        zone=_zone_before(event, item, item.groups[event.group]),
        notice_s=None,
        lost_steps=0,
        lost_ms=0,
        lost_micros=0,
    )


def _zone_before(event: CapacityLost | NodeLost, item: AttemptBill, group: GroupBill) -> str:
    """The zone in which a lost node stood; for all nodes at once, that of the first group."""
    zones = [zone for at_ms, zone in group.zones if at_ms < to_ms(event.at) and zone]
    return zones[-1] if group.name and zones else item.zone


costs_router = Router(prefix="/v1")

PHASES: Final = tuple(phase.value for phase in Phase)
"""Phases in the order of the columns."""


@costs_router.get("/costs", response_model=CostsOut, responses=CSV_RESPONSE, tags=["history"])
def list_costs(
    services: TheServices,
    caller: TheCaller,
    window: TheTimeRange,
    as_csv: AsCsv,
    *,
    by: Annotated[
        str,
        Query(max_length=220, description="job, attempt, user, project, tag:NAME, zone or day."),
    ] = "job",
    each: Annotated[
        str | None,
        Query(
            max_length=220,
            description="With `by=day`: also group by user, project, tag:NAME or zone.",
        ),
    ] = None,
    project: Annotated[str | None, Query(max_length=200, description="Only this project.")] = None,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 1000,
) -> CostsOut | Response:
    """List total time and cost by the requested key, most expensive first."""
    group_by, tag = _parse_group_by(by)
    within, tag_within = _parse_subgroup(each, group_by) if each is not None else (None, "")
    question = CostRequest(
        by=group_by,
        then_by=within,
        tag=tag or tag_within,
        since=window.since,
        until=window.until,
        projects=caller.filter_projects(project),
        limit=limit,
    )
    found = services.costs.totals(question, services.clock.now())
    if as_csv:
        return _costs_csv(question, found)
    return CostsOut(
        by=by,
        each=each,
        since=window.since,
        until=window.until,
        costs=[_view(cost, each=each is not None) for cost in found.totals],
        left_out=found.left_out,
        total=_view(found.total),
        pending=found.pending,
        prices_source=services.resource_prices.source,
        prices_as_of=services.resource_prices.as_of,
    )


def _parse_group_by(
    asked: str, name: str = "by", among: Collection[GroupBy] = tuple(GroupBy)
) -> tuple[GroupBy, str]:
    """Parse the grouping key, and the name of the tag if it is one."""
    word, colon, tag = asked.partition(":")
    if word in set(among) and (word == GroupBy.TAG) == bool(tag) and bool(tag) == bool(colon):
        return GroupBy(word), tag
    words = ", ".join("tag:NAME" if by is GroupBy.TAG else by for by in among)
    raise BadRequest(f"{name}: {asked!r} is unknown; write one of {words}")


def _parse_subgroup(asked: str, by: GroupBy) -> tuple[GroupBy, str]:
    if by is not GroupBy.DAY:
        raise BadRequest(f"each: totals by {by} cannot be divided further; write by=day")
    return _parse_group_by(
        asked, "each", (GroupBy.USER, GroupBy.PROJECT, GroupBy.TAG, GroupBy.ZONE)
    )


def _view(cost: CostTotal, *, each: bool = False) -> CostOut:
    ms, micros = cost.ms, cost.micros
    whole_ms = ms.measured + cost.amounts["waiting_ms"]
    return CostOut(
        key=cost.key,
        label=cost.label or None,
        part=cost.part if each else None,
        jobs=cost.jobs,
        waiting_ms=cost.amounts["waiting_ms"],
        ms=PhasesOut.from_phases(ms),
        provisioned_ms=ms.total,
        node_ms=cost.amounts["node_ms"],
        micros=PhasesOut.from_phases(micros),
        adjusted_micros=cost.amounts["adjusted_micros"],
        paid_micros=cost.paid_micros,
        on_demand_micros=cost.amounts["on_demand_micros"],
        saved_micros=cost.saved_micros,
        wasted_micros=cost.wasted_micros,
        goodput=ms.goodput,
        goodput_with_waiting=ms.useful / whole_ms if whole_ms else None,
        simulated=cost.simulated,
        is_price_estimate=cost.is_price_estimate,
        charges=ChargeSumsOut(
            **{category: cost.charges[f"{category}_micros"] for category in Category}
        ),
        charged_micros=cost.charged_micros,
        total_micros=cost.total_micros,
        has_unpriced=cost.has_unpriced,
    )


def _headings(question: CostRequest) -> tuple[str, str]:
    """Return the headings of the grouping columns."""
    if question.then_by is None:
        return question.tag or str(question.by), "label"
    return str(question.by), question.tag or str(question.then_by)


def _costs_csv(question: CostRequest, found: CostReport) -> Response:
    header = (
        *_headings(question),
        *("jobs", "waiting_s"),
        *(f"{phase}_s" for phase in PHASES),
        *("node_s", *(f"{phase}_usd" for phase in PHASES), "adjusted_usd", "paid_usd"),
        *("on_demand_usd", "saved_usd", "wasted_usd", "simulated", "estimate"),
        *(f"{category}_usd" for category in Category),
        *("charged_usd", "total_usd", "unpriced"),
    )
    rows = [
        (
            *(text(cost.key), text(cost.part if question.then_by else cost.label), str(cost.jobs)),
            seconds(cost.amounts["waiting_ms"]),
            *(seconds(getattr(cost.ms, phase)) for phase in PHASES),
            seconds(cost.amounts["node_ms"]),
            *(usd(getattr(cost.micros, phase)) for phase in PHASES),
            *(usd(cost.amounts["adjusted_micros"]), usd(cost.paid_micros)),
            *(usd(cost.amounts["on_demand_micros"]), usd(cost.saved_micros)),
            usd(cost.wasted_micros),
            *(str(cost.simulated).lower(), str(cost.is_price_estimate).lower()),
            *(usd(cost.charges[f"{category}_micros"]) for category in Category),
            *(usd(cost.charged_micros), usd(cost.total_micros), str(cost.has_unpriced).lower()),
        )
        for cost in found.totals
    ]
    return csv_response(f"costs-by-{question.by}", [text(word) for word in header], rows)
