"""What nodes cost, where, and who says so."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.api.price_schemas import PriceOut, PricesOut, RefusedPriceOut
from holdfast.api.services import The
from holdfast.domain.candidates import unknown_cloud
from holdfast.domain.offers import Offers, accelerators
from holdfast.domain.price_rows import Refusal
from holdfast.domain.quotes import Quote, Wanted
from holdfast.errors import BadRequest

router = APIRouter(prefix="/v1")

Word = Annotated[str | None, Query(max_length=100)]


@router.get("/prices", response_model=PricesOut, tags=["prices"])
def list_prices(
    services: The,
    *,
    accelerator: Word = None,
    cloud: Word = None,
    region: Word = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    refused: bool = False,
) -> PricesOut:
    """Spot against on demand. An accelerator that nobody tells of has one price, which is an estimate."""
    wanted = _wanted(accelerator, cloud, region)
    now = services.clock.now()
    found = services.prices.find(wanted, now)
    quotes = found.quotes
    if not quotes and wanted.accelerator and wanted.count:
        quotes = (services.prices.quote(wanted, now),)
    return PricesOut(
        prices=[_price(quote) for quote in quotes[:limit]],
        left_out=max(0, len(quotes) - limit),
        refused_count=len(found.refused),
        refused=[_refused(item) for item in found.refused] if refused else [],
    )


def _wanted(accelerator: str | None, cloud: str | None, region: str | None) -> Wanted:
    cloud = cloud.strip().lower() if cloud else None
    if cloud and (flaw := unknown_cloud(cloud)):
        raise BadRequest(f"cloud: {flaw}")
    name, count = _accelerator(accelerator) if accelerator else (None, 0.0)
    return Wanted(cloud=cloud, region=region or None, accelerator=name, count=count)


def _accelerator(text: str) -> tuple[str, float]:
    """Name and count; a count of 0 means any."""
    said = next(accelerators(text), None)
    if said is None or said[1] <= 0:
        raise BadRequest(f"accelerator: {text!r} is none; write a name and a count, such as A100:8")
    offers = Offers.of_this_version()
    if known := offers.misspelt(said[0]) or offers.near(said[0]):
        raise BadRequest(f"accelerator: {said[0]!r} is not known; did you mean {known!r}?")
    return said[0], said[1] if ":" in text else 0.0


def _price(quote: Quote) -> PriceOut:
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
        source=quote.source,
        tier=quote.tier,
        is_estimate=quote.is_estimate,
        repairs=list(quote.repairs),
    )


def _refused(item: Refusal) -> RefusedPriceOut:
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
