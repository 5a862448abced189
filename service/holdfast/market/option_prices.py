"""Prices of the nodes that an option of a job file describes, from the price catalog.

Blocking, as clouds may be asked for prices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.resource_options import ResourceOption
from holdfast.domain.planning.places import is_zone_id
from holdfast.domain.pricing.quotes import PriceQuery, Quote, without_old
from holdfast.ports import PriceCatalog


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionPrices:
    """The lowest prices of one node of an option, in micro-dollars per hour."""

    spot_micros: int | None = None
    """None: no spot nodes are sold there."""
    on_demand_micros: int | None = None
    """Likewise."""
    instance_type: str | None = None
    """Of the cheapest spot nodes; None if unknown."""
    as_of: datetime | None = None
    """Date of the older price; None without one."""
    is_estimate: bool = False
    """Whether a price is a high estimate."""


def option_prices(option: ResourceOption, prices: PriceCatalog, now: datetime) -> OptionPrices:
    """The lowest current prices of one node.

    They are estimates if the price list of the cloud has no such nodes anywhere.
    """
    spot, on_demand = (_cheapest(option, prices, now, is_spot=is_spot) for is_spot in (True, False))
    found = [quote for quote, _ in filter(None, (spot, on_demand))]
    if not found:
        return _estimated(option, prices, now)
    return OptionPrices(
        spot_micros=spot[1] if spot else None,
        on_demand_micros=on_demand[1] if on_demand else None,
        instance_type=spot[0].instance_type if spot else None,
        as_of=min(quote.as_of for quote in found),
        is_estimate=any(quote.is_estimate for quote in found),
    )


def option_quotes(
    option: ResourceOption, prices: PriceCatalog, now: datetime, *, is_spot: bool
) -> Iterator[tuple[Quote, int]]:
    """Yield the known prices of one node in the option's region.

    None for nodes that the file describes by other properties.
    """
    for query in _queries(option, is_spot=is_spot):
        for quote in prices.find(query, now).quotes:
            micros = quote.micros_per_hour(is_spot=is_spot)
            if micros is not None:
                yield quote, micros


def option_location(option: ResourceOption) -> tuple[str | None, str | None]:
    """The cloud and the region that an option names."""
    region, _ = _region_and_zone(option)
    return option.cloud, region


def _cheapest(
    option: ResourceOption, prices: PriceCatalog, now: datetime, *, is_spot: bool
) -> tuple[Quote, int] | None:
    _, zone = _region_and_zone(option)
    region = [*option_quotes(option, prices, now, is_spot=is_spot)]
    current = set(without_old((quote for quote, _ in region), now))
    found = [each for each in region if each[0] in current]
    here = [each for each in found if zone is None or each[0].zone in {None, zone}]
    if here:
        return min(here, key=lambda each: each[1])
    # SkyPilot's list has ids of zones, whose names only AWS knows: any of them may be this one.
    unnamed = [each for each in found if is_zone_id(each[0].zone or "")]
    quote, micros = max(unnamed, key=lambda each: each[1], default=(None, 0))
    return (replace(quote, is_estimate=True), micros) if quote else None


def _estimated(option: ResourceOption, prices: PriceCatalog, now: datetime) -> OptionPrices:
    """A high estimate; no price if the cloud's list has such nodes, but not at this place."""
    for query in _queries(option, is_spot=True):
        if (
            query.region
            and prices.find(
                PriceQuery(
                    cloud=query.cloud,
                    instance_type=query.instance_type,
                    accelerator=query.accelerator,
                    count=query.count,
                ),
                now,
            ).quotes
        ):
            return OptionPrices()
        quote = prices.quote(query, now)
        return OptionPrices(
            spot_micros=quote.spot_micros_per_hour or quote.dearest_micros,
            on_demand_micros=quote.on_demand_micros_per_hour or quote.dearest_micros,
            instance_type=query.instance_type,
            as_of=quote.as_of,
            is_estimate=True,
        )
    return OptionPrices()


def _queries(option: ResourceOption, *, is_spot: bool) -> Iterator[PriceQuery]:
    """Yield a query for each of the option's accelerators."""
    cloud, (region, zone) = option.cloud, _region_and_zone(option)
    kind = option.options.get("instance_type")
    accelerators: list[tuple[str | None, float]]
    accelerators = [*parse_accelerators(option.options.get("accelerators"))]
    if kind and not accelerators:
        accelerators = [(None, 0.0)]
    for accelerator, count in accelerators:
        yield PriceQuery(
            cloud=cloud,
            region=region,
            zone=zone,
            instance_type=kind,
            accelerator=accelerator,
            count=count,
            is_spot=is_spot,
        )


def _region_and_zone(option: ResourceOption) -> tuple[str | None, str | None]:
    parts = str(option.options.get("infra") or "").strip("/").split("/")
    _, region, zone, *_ = (*parts, "", "", "")
    known = (None if part in {"", "*"} else part for part in (region, zone))
    return next(known), next(known)
