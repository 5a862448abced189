"""Questions before anything runs: what a loss costs, how often to save, what fits a model. Prices are those of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Query

from holdfast.api.dependencies import The
from holdfast.api.routes.prices import wanted_of
from holdfast.api.routing import Router
from holdfast.api.schemas.prices import AdviceOut, CadenceOut, CandidateOut, LossEstimateOut
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.planning import (
    HOURS_PER_DAY,
    PEAK_TFLOPS,
    USUAL_S,
    cadence,
    loss,
    memory_bytes,
    parameters,
    rough,
    share_wasted,
    size_for,
    why_on_demand,
)
from holdfast.domain.pricing.quotes import PriceQuery, Quote, current
from holdfast.errors import BadRequest
from holdfast.services import Services

router = Router(prefix="/v1", tags=["prices"])

Hours = Annotated[float, Query(gt=0, le=24 * 366)]
Seconds = Annotated[float, Query(gt=0, le=366 * 86400)]


@router.get("/what-if/loss", response_model=LossEstimateOut)
def tell_loss(
    services: The,
    *,
    at_hour: Annotated[float, Query(gt=0, le=24 * 366, description="When the failure comes.")],
    every_hours: Annotated[
        float | None, Query(gt=0, le=24 * 366, description="Between checkpoints; none: never.")
    ] = None,
    usd_per_day: Annotated[
        float | None, Query(gt=0, le=1e9, description="Of all nodes; without it, by `accelerator`.")
    ] = None,
    accelerator: Annotated[
        str | None, Query(max_length=100, description="Of a node, such as A100:8.")
    ] = None,
    nodes: Annotated[int, Query(ge=1, le=100_000)] = 1,
    spot: bool = False,
) -> LossEstimateOut:
    """What a failure takes from a job, without checkpoints and with."""
    if (usd_per_day is None) == (accelerator is None):
        raise BadRequest("say one of the two: usd_per_day, or accelerator such as A100:8")
    if usd_per_day is not None:
        price = DayPrice(round(usd_per_day * MICROS_PER_USD), "you")
    else:
        price = _per_day(services, str(accelerator), nodes, is_spot=spot)
    told = loss(price.micros, at_hour, every_hours)
    return LossEstimateOut(
        micros_per_day=price.micros,
        price_source=price.source,
        price_as_of=price.as_of,
        is_price_old=price.is_old,
        is_price_estimate=price.is_estimate,
        hours_without=told.hours_without,
        micros_without=told.micros_without,
        roughly_micros_without=rough(told.micros_without),
        hours_with=told.hours_with,
        micros_with=told.micros_with,
        roughly_micros_with=rough(told.micros_with),
    )


@router.get("/what-if/cadence", response_model=CadenceOut)
def tell_cadence(
    cost_s: Annotated[float, Query(gt=0, le=86400, description="How long a checkpoint stops training.")],
    between_failures_s: Annotated[float, Query(gt=0, le=366 * 86400, description="How long nodes last on average.")],
    every_s: Annotated[float | None, Query(gt=0, le=366 * 86400, description="An interval to judge.")] = None,
) -> CadenceOut:  # fmt: skip
    """How often to save, and what an interval wastes."""
    best = cadence(cost_s, between_failures_s)
    asked = share_wasted(every_s, cost_s, between_failures_s) if every_s else None
    usual = {kind: [*span] for kind, span in USUAL_S.items()}
    return CadenceOut(best_s=best.best_s, waste=best.waste, asked_waste=asked, usual_s=usual)


@router.get("/advice", response_model=AdviceOut)
def advise(
    services: The,
    *,
    params: Annotated[str, Query(max_length=40, description="Size of the model, such as 7B.")],
    hours_left: Annotated[
        float | None, Query(ge=0, le=24 * 366, description="Until its deadline; none: there is no deadline.")
    ] = None,
    checkpoints: Annotated[bool, Query(description="Whether it saves.")] = True,
    critical: Annotated[bool, Query(description="Whether somebody waits for it.")] = False,
) -> AdviceOut:  # fmt: skip
    """Which accelerators fit a model, what they cost, and whether spot nodes fit the job."""
    count = parameters(params)
    size = size_for(count)
    reasons = list(
        why_on_demand(hours_left=hours_left, has_checkpoints=checkpoints, is_critical=critical)
    )
    rest = [name for name in PEAK_TFLOPS if name not in size.accelerators]
    return AdviceOut(
        parameters=count,
        memory_bytes=memory_bytes(count),
        how=size.how,
        fits=[_candidate(services, name) for name in size.accelerators],
        others=[_candidate(services, name) for name in rest],
        spot=not reasons,
        reasons=reasons,
    )


@dataclass(frozen=True, slots=True)
class DayPrice:
    """What nodes cost in a day."""

    micros: int
    source: str
    as_of: datetime | None = None
    """None: the caller gave it."""
    is_old: bool = False
    is_estimate: bool = False


def _per_day(services: Services, accelerator: str, nodes: int, *, is_spot: bool) -> DayPrice:
    """The lowest price of nodes among those of today; an old one only where all are old."""
    wanted = wanted_of(accelerator, None, None)
    now = services.clock.now()
    quotes = services.prices.find(wanted, now).quotes
    sold = current([q for q in quotes if q.micros_per_hour(is_spot=is_spot)], now)
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
    """One accelerator with the lowest prices that are told for it, in whatever number it is sold."""
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
        on_demand_micros_per_hour=_each(demand, is_spot=False),
        spot_micros_per_hour=_each(spot, is_spot=True),
        as_of=min(dates, default=None),
        is_old=any(price.is_old(now) for price in (demand, spot) if price),
    )


def _cheapest(quotes: Iterable[Quote], now: datetime, *, is_spot: bool) -> Quote | None:
    """The quote with the lowest price of one accelerator; an old one only where all are old."""
    sold = current([q for q in quotes if q.micros_per_hour(is_spot=is_spot)], now)
    return min(
        sold, key=lambda q: (q.micros_per_hour(is_spot=is_spot) or 0) / q.count, default=None
    )


def _each(quote: Quote | None, *, is_spot: bool) -> int | None:
    """The price of one accelerator."""
    micros = quote.micros_per_hour(is_spot=is_spot) if quote else None
    return round(micros / quote.count) if quote and micros else None
