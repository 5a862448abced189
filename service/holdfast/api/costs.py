"""What all jobs cost, added up."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final

from fastapi import Query, Response

from holdfast.api.auth import TheCaller
from holdfast.api.bill_schemas import PhasesOut
from holdfast.api.cost_schemas import CostOut, CostsOut
from holdfast.api.routing import Router
from holdfast.api.services import The
from holdfast.api.sheets import ALSO_CSV, AsCsv, seconds, sheet, text, usd
from holdfast.api.windows import TheWindow
from holdfast.domain.phases import Phase
from holdfast.errors import BadRequest
from holdfast.store.costs import By, Cost, Costs, Question

router = Router(prefix="/v1")

PHASES: Final = tuple(phase.value for phase in Phase)
"""In the order of columns."""


@router.get("/costs", response_model=CostsOut, responses=ALSO_CSV, tags=["history"])
def list_costs(
    services: The,
    caller: TheCaller,
    window: TheWindow,
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
            description="With `by=day`: what the sums of a day are told apart by: user, project, tag:NAME or zone.",
        ),
    ] = None,
    project: Annotated[str | None, Query(max_length=200, description="Only of this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 1000,
) -> CostsOut | Response:
    """Where time and money went, by whatever they are to be told apart by; the dearest first."""
    told, tag = _by(by)
    within, tag_within = _each(each, told) if each is not None else (None, "")
    question = Question(
        by=told,
        each=within,
        tag=tag or tag_within,
        since=window.since,
        until=window.until,
        projects=caller.within(project),
        limit=limit,
    )
    found = services.costs.ask(question, services.clock.now())
    if as_csv:
        return _sheet(question, found)
    return CostsOut(
        by=by,
        each=each,
        since=window.since,
        until=window.until,
        costs=[_view(cost, each=each is not None) for cost in found.sums],
        left_out=found.left_out,
        total=_view(found.total),
        pending=found.pending,
    )


def _by(asked: str, name: str = "by", among: Collection[By] = tuple(By)) -> tuple[By, str]:
    """What is told apart, and the name of the tag if it is one."""
    word, colon, tag = asked.partition(":")
    if word in set(among) and (word == By.TAG) == bool(tag) and bool(tag) == bool(colon):
        return By(word), tag
    words = ", ".join("tag:NAME" if by is By.TAG else by for by in among)
    raise BadRequest(f"{name}: {asked!r} is none of {words}")


def _each(asked: str, by: By) -> tuple[By, str]:
    if by is not By.DAY:
        raise BadRequest(f"each: sums by {by} are not told apart any further; write by=day")
    return _by(asked, "each", (By.USER, By.PROJECT, By.TAG, By.ZONE))


def _view(cost: Cost, *, each: bool = False) -> CostOut:
    ms, micros = cost.ms, cost.micros
    whole_ms = ms.measured + cost.amounts["waiting_ms"]
    return CostOut(
        key=cost.key,
        label=cost.label or None,
        part=cost.part if each else None,
        jobs=cost.jobs,
        waiting_ms=cost.amounts["waiting_ms"],
        ms=PhasesOut.of(ms),
        provisioned_ms=ms.total,
        node_ms=cost.amounts["node_ms"],
        micros=PhasesOut.of(micros),
        adjusted_micros=cost.amounts["adjusted_micros"],
        paid_micros=cost.paid_micros,
        on_demand_micros=cost.amounts["on_demand_micros"],
        saved_micros=cost.saved_micros,
        wasted_micros=cost.wasted_micros,
        goodput=ms.goodput,
        goodput_with_waiting=ms.useful / whole_ms if whole_ms else None,
        simulated=cost.simulated,
        is_price_estimate=cost.is_price_estimate,
    )


def _names(question: Question) -> tuple[str, str]:
    """The headings of what sums are of."""
    if question.each is None:
        return question.tag or str(question.by), "label"
    return str(question.by), question.tag or str(question.each)


def _sheet(question: Question, found: Costs) -> Response:
    header = (
        *_names(question),
        *("jobs", "waiting_s"),
        *(f"{phase}_s" for phase in PHASES),
        *("node_s", *(f"{phase}_usd" for phase in PHASES), "adjusted_usd", "paid_usd"),
        *("on_demand_usd", "saved_usd", "wasted_usd", "simulated", "estimate"),
    )
    rows = [
        (
            *(text(cost.key), text(cost.part if question.each else cost.label), str(cost.jobs)),
            seconds(cost.amounts["waiting_ms"]),
            *(seconds(getattr(cost.ms, phase)) for phase in PHASES),
            seconds(cost.amounts["node_ms"]),
            *(usd(getattr(cost.micros, phase)) for phase in PHASES),
            *(usd(cost.amounts["adjusted_micros"]), usd(cost.paid_micros)),
            *(usd(cost.amounts["on_demand_micros"]), usd(cost.saved_micros)),
            usd(cost.wasted_micros),
            *(str(cost.simulated).lower(), str(cost.is_price_estimate).lower()),
        )
        for cost in found.sums
    ]
    return sheet(f"costs-by-{question.by}", [text(word) for word in header], rows)
