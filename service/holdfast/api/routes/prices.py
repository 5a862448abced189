"""Node prices by place, with their sources."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Final

from fastapi import Query

from holdfast.api.dependencies import TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.prices import (
    PriceChangeOut,
    PriceHistoryOut,
    PriceOut,
    PriceSeriesOut,
    PricesOut,
    RefusedPriceOut,
)
from holdfast.api.time_ranges import TheTimeRange
from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.resource_options import unknown_cloud
from holdfast.domain.pricing.price_history import price_range
from holdfast.domain.pricing.price_list import RejectedRow
from holdfast.domain.pricing.quotes import PriceQuery, Quote, current_first
from holdfast.errors import BadRequest
from holdfast.rendering import bundled_accelerators
from holdfast.services import Services

router = Router(prefix="/v1")

DEFAULT_PERIOD: Final = timedelta(days=30)
"""Default period of a price history."""
TIME_LIMIT: Final = timedelta(seconds=10)
"""Time limit of queries to clouds, place by place; the rest is omitted.

A higher value delays callers and holds threads; a lower one returns fewer places. Results are cached for some minutes,
so that a repeated request gets further.
"""

FilterText = Annotated[str | None, Query(max_length=100)]


@router.get("/prices", response_model=PricesOut, tags=["prices"])
def list_prices(
    services: TheServices,
    *,
    accelerator: FilterText = None,
    cloud: FilterText = None,
    region: FilterText = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    refused: bool = False,
) -> PricesOut:
    """List spot and on-demand prices. An accelerator without a source has one estimated price."""
    wanted = price_query(accelerator, cloud, region)
    now = services.clock.now()
    found = services.prices.find(wanted, now)
    quotes = found.quotes
    if not quotes and wanted.accelerator and wanted.count:
        quotes = (services.prices.quote(wanted, now),)
    quotes = current_first(quotes, now)
    return PricesOut(
        prices=[_price(quote, now) for quote in quotes[:limit]],
        left_out=max(0, len(quotes) - limit),
        refused_count=len(found.refused),
        refused=[_refused(item) for item in found.refused] if refused else [],
    )


@router.get("/prices/history", response_model=PriceHistoryOut, tags=["prices"])
def list_price_history(
    services: TheServices,
    window: TheTimeRange,
    *,
    accelerator: Annotated[str, Query(max_length=100)],
    cloud: FilterText = None,
    region: FilterText = None,
    limit: Annotated[int, Query(ge=1, le=50)] = 8,
) -> PriceHistoryOut:
    """Show changes of spot prices over a period, by default thirty days.

    Places without a history have no changes.
    """
    wanted = price_query(accelerator, cloud, region)
    now = services.clock.now()
    until = min(now, _midnight(window.until) + timedelta(days=1)) if window.until else now
    since = _midnight(window.since) if window.since else until - DEFAULT_PERIOD
    if since > until:
        raise BadRequest(
            f"since: {window.since} is in the future (UTC); write today or an earlier day"
        )
    quotes = services.prices.find(wanted, now).quotes
    sold = current_first([quote for quote in quotes if quote.spot_micros_per_hour], now)
    series: list[PriceSeriesOut] = []
    for quote in sold[:limit]:
        if services.clock.now() - now > TIME_LIMIT:
            break
        series.append(_series(services, quote, since, until))
    return PriceHistoryOut(
        since=since, until=until, series=series, left_out=len(sold) - len(series)
    )


def _series(services: Services, quote: Quote, since: datetime, until: datetime) -> PriceSeriesOut:
    node = PriceQuery(
        cloud=quote.cloud,
        region=quote.region,
        zone=quote.zone,
        instance_type=quote.instance_type,
    )
    changes = services.prices.history(node, since, until)
    between = price_range(changes, since, until)
    return PriceSeriesOut(
        now=_price(quote, services.clock.now()),
        lowest_micros_per_hour=between.lowest if between else None,
        mean_micros_per_hour=between.mean if between else None,
        highest_micros_per_hour=between.highest if between else None,
        changes=[
            PriceChangeOut(at=max(change.at, since), micros_per_hour=change.micros_per_hour)
            for change in changes
        ],
    )


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=UTC)


def price_query(accelerator: str | None, cloud: str | None, region: str | None) -> PriceQuery:
    """Parse the node of a price query.

    Raises:
        BadRequest: the cloud or accelerator is unknown.
    """
    cloud = cloud.strip().lower() if cloud else None
    if cloud and (flaw := unknown_cloud(cloud)):
        raise BadRequest(f"cloud: {flaw}")
    name, count = _accelerator(accelerator) if accelerator else (None, 0.0)
    return PriceQuery(cloud=cloud, region=region or None, accelerator=name, count=count)


def _accelerator(text: str) -> tuple[str, float]:
    """Parse name and count; a count of 0 means any."""
    parsed = next(parse_accelerators(text), None)
    if parsed is None or parsed[1] <= 0:
        raise BadRequest(
            f"accelerator: {text!r} is not valid; write a name and a count, such as A100:8"
        )
    offers = bundled_accelerators()
    if known := offers.correction(parsed[0]) or offers.similar_name(parsed[0]):
        raise BadRequest(f"accelerator: {parsed[0]!r} is unknown; did you mean {known!r}?")
    return parsed[0], parsed[1] if ":" in text else 0.0


def _price(quote: Quote, now: datetime) -> PriceOut:
    spot, full = quote.spot_micros_per_hour, quote.on_demand_micros_per_hour
    return PriceOut(
        cloud=quote.cloud or None,
        region=quote.region,
        zone=quote.zone,
        instance_type=quote.instance_type,
        accelerator=quote.accelerator,
        count=quote.count,
        spot_micros_per_hour=spot,
        on_demand_micros_per_hour=full,
        saved_micros_per_hour=None if spot is None or full is None else full - spot,
        as_of=quote.as_of,
        is_old=quote.is_old(now),
        source=quote.source,
        tier=quote.tier,
        is_estimate=quote.is_estimate,
        repairs=list(quote.repairs),
    )


def _refused(item: RejectedRow) -> RefusedPriceOut:
    row = item.row
    return RefusedPriceOut(
        cloud=row.cloud,
        region=row.region,
        zone=row.zone,
        instance_type=row.instance_type,
        accelerator=row.accelerator,
        count=row.count,
        on_demand=row.on_demand,
        spot=row.spot,
        rule=item.rule,
        reason=item.reason,
    )
