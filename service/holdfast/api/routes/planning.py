"""Planning at catalog prices: cost of failures, checkpoint intervals, accelerators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Query

from holdfast.api.dependencies import TheServices
from holdfast.api.routes.prices import price_query
from holdfast.api.routing import Router
from holdfast.api.schemas.prices import AdviceOut, CadenceOut, CandidateOut, LossEstimateOut
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.planning.estimates import (
    HABITUAL_INTERVALS_S,
    HOURS_PER_DAY,
    PEAK_TFLOPS,
    cadence,
    estimate_loss,
    memory_bytes,
    model_size,
    on_demand_reasons,
    parse_parameter_count,
    round_for_display,
    share_wasted,
)
from holdfast.domain.pricing.quotes import PriceQuery, Quote, without_old
from holdfast.errors import BadRequest
from holdfast.services import Services

router = Router(prefix="/v1", tags=["prices"])

Hours = Annotated[float, Query(gt=0, le=24 * 366)]
Seconds = Annotated[float, Query(gt=0, le=366 * 86400)]


@router.get("/what-if/loss", response_model=LossEstimateOut)
def tell_loss(
    services: TheServices,
    *,
    at_hour: Annotated[float, Query(gt=0, le=24 * 366, description="Time of the failure.")],
    every_hours: Annotated[
        float | None,
        Query(gt=0, le=24 * 366, description="Time between checkpoints; default: no checkpoints."),
    ] = None,
    usd_per_day: Annotated[
        float | None,
        Query(gt=0, le=1e9, description="Cost of all nodes; default: the price of `accelerator`."),
    ] = None,
    accelerator: Annotated[
        str | None, Query(max_length=100, description="Accelerators of a node, such as A100:8.")
    ] = None,
    nodes: Annotated[int, Query(ge=1, le=100_000)] = 1,
    spot: bool = False,
) -> LossEstimateOut:
    """Estimate the loss from a failure, with and without checkpoints."""
    if (usd_per_day is None) == (accelerator is None):
        raise BadRequest("give either usd_per_day, or accelerator such as A100:8")
    if usd_per_day is not None:
        price = DayPrice(round(usd_per_day * MICROS_PER_USD), "you")
    else:
        price = _daily_price(services, str(accelerator), nodes, is_spot=spot)
    estimate = estimate_loss(price.micros, at_hour, every_hours)
    return LossEstimateOut(
        micros_per_day=price.micros,
        price_source=price.source,
        price_as_of=price.as_of,
        is_price_old=price.is_old,
        is_price_estimate=price.is_estimate,
        hours_without=estimate.hours_without,
        micros_without=estimate.micros_without,
        roughly_micros_without=round_for_display(estimate.micros_without),
        hours_with=estimate.hours_with,
        micros_with=estimate.micros_with,
        roughly_micros_with=round_for_display(estimate.micros_with),
    )


@router.get("/what-if/cadence", response_model=CadenceOut)
def tell_cadence(
    cost_s: Annotated[float, Query(gt=0, le=86400, description="Time that a checkpoint stops training.")],
    between_failures_s: Annotated[float, Query(gt=0, le=366 * 86400, description="Mean lifetime of nodes.")],
    every_s: Annotated[float | None, Query(gt=0, le=366 * 86400, description="Interval to evaluate.")] = None,
) -> CadenceOut:  # fmt: skip
    """Compute the best checkpoint interval, and the waste of a given one."""
    best = cadence(cost_s, between_failures_s)
    asked = share_wasted(every_s, cost_s, between_failures_s) if every_s else None
    usual = {kind: [*span] for kind, span in HABITUAL_INTERVALS_S.items()}
    return CadenceOut(best_s=best.best_s, waste=best.waste, asked_waste=asked, usual_s=usual)


@router.get("/advice", response_model=AdviceOut)
def advise(
    services: TheServices,
    *,
    params: Annotated[str, Query(max_length=40, description="Size of the model, such as 7B.")],
    hours_left: Annotated[
        float | None, Query(ge=0, le=24 * 366, description="Time until the deadline; default: no deadline.")
    ] = None,
    checkpoints: Annotated[bool, Query(description="Whether the job saves checkpoints.")] = True,
    critical: Annotated[bool, Query(description="Whether the job is urgent, as a person waits for it.")] = False,
) -> AdviceOut:  # fmt: skip
    """List accelerators that fit a model with prices, and whether spot nodes suit the job."""
    count = parse_parameter_count(params)
    size = model_size(count)
    reasons = list(
        on_demand_reasons(hours_left=hours_left, has_checkpoints=checkpoints, is_critical=critical)
    )
    rest = [name for name in PEAK_TFLOPS if name not in size.accelerators]
    return AdviceOut(
        parameters=count,
        memory_bytes=memory_bytes(count),
        how=size.parallelism,
        fits=[_candidate(services, name) for name in size.accelerators],
        others=[_candidate(services, name) for name in rest],
        spot=not reasons,
        reasons=reasons,
    )


@dataclass(frozen=True, slots=True)
class DayPrice:
    """Price of nodes per day."""

    micros: int
    source: str
    as_of: datetime | None = None
    """None: given by the caller."""
    is_old: bool = False
    is_estimate: bool = False


def _daily_price(services: Services, accelerator: str, nodes: int, *, is_spot: bool) -> DayPrice:
    """Return the lowest current price of the nodes; an old one only if all are old."""
    wanted = price_query(accelerator, None, None)
    now = services.clock.now()
    quotes = services.prices.find(wanted, now).quotes
    sold = without_old([q for q in quotes if q.micros_per_hour(is_spot=is_spot)], now)
    quote = min(
        sold,
        key=lambda q: q.micros_per_hour(is_spot=is_spot) or 0,
        default=services.prices.quote(wanted, now),
    )
    hourly = quote.micros_per_hour(is_spot=is_spot) or quote.dearest_micros
    where = f"{quote.source}, {quote.cloud} {quote.region}" if quote.region else quote.source
    return DayPrice(
        hourly * nodes * HOURS_PER_DAY, where, quote.as_of, quote.is_old(now), quote.is_estimate
    )


def _candidate(services: Services, name: str) -> CandidateOut:
    """Return an accelerator with its lowest known prices over all sold counts."""
    now = services.clock.now()
    quotes = [
        q
        for count in (1, 2, 4, 8)
        for q in services.prices.find(PriceQuery(accelerator=name, count=count), now).quotes
        if q.count
    ]
    demand, spot = (_cheapest(quotes, now, is_spot=is_spot) for is_spot in (False, True))
    dates = [price.as_of for price in (demand, spot) if price]
    return CandidateOut(
        accelerator=name,
        peak_tflops=PEAK_TFLOPS[name],
        on_demand_micros_per_hour=_price_per_accelerator(demand, is_spot=False),
        spot_micros_per_hour=_price_per_accelerator(spot, is_spot=True),
        as_of=min(dates, default=None),
        is_old=any(price.is_old(now) for price in (demand, spot) if price),
    )


def _cheapest(quotes: Iterable[Quote], now: datetime, *, is_spot: bool) -> Quote | None:
    """Return the quote with the lowest price per accelerator; an old one only if all are old."""
    sold = without_old([q for q in quotes if q.micros_per_hour(is_spot=is_spot)], now)
    return min(
        sold, key=lambda q: (q.micros_per_hour(is_spot=is_spot) or 0) / q.count, default=None
    )


def _price_per_accelerator(quote: Quote | None, *, is_spot: bool) -> int | None:
    """Return the price per accelerator."""
    micros = quote.micros_per_hour(is_spot=is_spot) if quote else None
    return round(micros / quote.count) if quote and micros else None
