"""Price quotes of nodes: price, source and date, and the choice among several quotes.

A price is always returned. Unknown prices are estimated high and marked (`holdfast.domain.pricing.estimates`): a limit that stops
a job too early can be raised, but one that stops it too late has already spent the money.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final


class QuoteSource(StrEnum):
    """Source of a quote, most trusted first."""

    LIVE = "live"
    """Queried from the cloud."""
    CATALOG = "catalog"
    """SkyPilot's catalog on this machine, which SkyPilot keeps up to date."""
    SNAPSHOT = "snapshot"
    """The dated list shipped with this version."""
    ESTIMATE = "estimate"
    """An estimate, see `holdfast.domain.pricing.estimates`."""


_ORDER: Final = {tier: n for n, tier in enumerate(QuoteSource)}


MAX_QUOTE_AGE: Final = timedelta(days=90)
"""Age from which a quote is marked and listed last. A lower value hides price lists that are refreshed quarterly; a higher value
ranks outdated prices among current ones.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """Price of one node type at a place."""

    cloud: str
    """Cloud in SkyPilot's spelling; empty for an estimate of no particular cloud."""
    region: str | None
    zone: str | None
    """Zone; None if the quote holds for the whole region.

    AWS files contain zone ids (use1-az1), which are equal for all accounts; the API returns zone names (us-east-1a), which are not.
    """
    instance_type: str | None
    accelerator: str | None
    """Accelerator in SkyPilot's spelling; None without one or if unknown."""
    count: float
    """Accelerators per node; 0 without any or if unknown."""
    on_demand_micros_per_hour: int | None
    """On-demand price; None if not sold or unknown."""
    spot_micros_per_hour: int | None
    """Spot price; None without a market or if unknown."""
    as_of: datetime
    """Date of the price at its source."""
    source: str
    """Description of the source for display."""
    tier: QuoteSource
    is_estimate: bool = False
    """Whether either price is an estimate."""
    repairs: tuple[str, ...] = ()
    """Names of the rules that dropped one of its prices as wrong."""

    def __post_init__(self) -> None:
        prices = [self.on_demand_micros_per_hour, self.spot_micros_per_hour]
        known = [micros for micros in prices if micros is not None]
        assert known, "a quote needs a price"
        assert min(known) > 0, "prices must be positive"

    def micros_per_hour(self, *, is_spot: bool) -> int | None:
        """The spot or on-demand price of the node; None if unknown."""
        return self.spot_micros_per_hour if is_spot else self.on_demand_micros_per_hour

    def is_old(self, now: datetime) -> bool:
        """Whether the price may have changed too much to be comparable with newer ones."""
        return now - self.as_of > MAX_QUOTE_AGE

    @property
    def dearest_micros(self) -> int:
        """The higher of its prices."""
        return max(self.on_demand_micros_per_hour or 0, self.spot_micros_per_hour or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceQuery:
    """The node whose price is wanted. None means unknown or irrelevant."""

    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    accelerator: str | None = None
    count: float = 0
    is_spot: bool = True

    def matches_node(self, quote: Quote) -> bool:
        """Whether a quote is for this node type, regardless of the place."""
        same_gpus = (
            _equal_ignoring_case(self.accelerator, quote.accelerator) and self.count == quote.count
        )
        if self.accelerator is None:
            return self.instance_type is None or _equal_ignoring_case(
                self.instance_type, quote.instance_type
            )
        # GCP lists GPUs separately from hosts: the same host with different GPUs is a different node.
        if quote.accelerator is None and quote.cloud != "gcp":
            return self.instance_type is not None and _equal_ignoring_case(
                self.instance_type, quote.instance_type
            )
        return same_gpus

    def matches_location(self, quote: Quote) -> bool:
        """Whether a quote holds in the wanted cloud and region."""
        return (self.cloud is None or quote.cloud == self.cloud) and (
            self.region is None or quote.region == self.region
        )

    def is_exact(self, quote: Quote) -> bool:
        """Whether a matching quote has exactly the wanted instance type and zone."""
        type_fits = self.instance_type is None or _equal_ignoring_case(
            self.instance_type, quote.instance_type
        )
        return type_fits and self.region is not None and quote.zone in (None, self.zone)


@dataclass(frozen=True, kw_only=True, slots=True)
class PricePoint:
    """A price from a time until the next change."""

    at: datetime
    micros_per_hour: int


def choose_quote(quotes: Iterable[Quote], wanted: PriceQuery) -> Quote | None:
    """The trusted quote that contains the wanted price; None if the region has none.

    The source counts before the zone: a current price of the region is closer to the truth than last year's price of the zone. Within
    a source the zone counts before the region, then the newer quote. If only the region is known, the highest price of its zones
    applies, as an estimate unless they agree.
    """
    here = [
        quote for quote in quotes if wanted.matches_location(quote) and wanted.matches_node(quote)
    ]
    for tier in QuoteSource:
        of_tier = [quote for quote in here if quote.tier is tier]
        if chosen := _best_of_source(of_tier, wanted):
            return _with_on_demand(chosen, here, wanted)
        if _has_no_spot(of_tier, wanted):
            return None  # In a zone without a market, spot prices of other zones do not apply.
    return None


def price_at(changes: Iterable[PricePoint], moment: datetime) -> PricePoint | None:
    """The last change at or before a time; None if all are later."""
    return max((c for c in changes if c.at <= moment), key=lambda c: c.at, default=None)


def price_points_within(
    changes: Iterable[PricePoint], since: datetime, until: datetime
) -> tuple[PricePoint, ...]:
    """The changes within a period, oldest first, preceded by the price at its start."""
    ordered = sorted(changes, key=lambda c: c.at)
    first = price_at(ordered, since)
    later = [c for c in ordered if since < c.at <= until]
    return (*([first] if first else []), *later)


def _best_of_source(quotes: Sequence[Quote], wanted: PriceQuery) -> Quote | None:
    exact = [quote for quote in quotes if wanted.is_exact(quote)]
    own_zone = [quote for quote in exact if quote.zone is not None]
    for group in (own_zone, exact, [] if _has_no_spot(quotes, wanted) else quotes):
        priced = [q for q in _newest(group) if q.micros_per_hour(is_spot=wanted.is_spot)]
        if priced:
            return _dearest(priced, wanted)
    return None


def _has_no_spot(quotes: Sequence[Quote], wanted: PriceQuery) -> bool:
    """Whether the exact zone is listed without a spot price."""
    own = [quote for quote in quotes if wanted.zone is not None and quote.zone == wanted.zone]
    return (
        wanted.is_spot
        and bool(own)
        and all(quote.spot_micros_per_hour is None for quote in _newest(own))
    )


def _newest(quotes: Sequence[Quote]) -> list[Quote]:
    """The newest quotes for each instance type and place."""
    newest: dict[tuple[str | None, ...], datetime] = {}
    for quote in quotes:
        key = _offer_key(quote)
        newest[key] = max(newest.get(key, quote.as_of), quote.as_of)
    return [quote for quote in quotes if quote.as_of == newest[_offer_key(quote)]]


def _offer_key(quote: Quote) -> tuple[str | None, ...]:
    return quote.cloud, quote.region, quote.zone, quote.instance_type


def _dearest(quotes: Sequence[Quote], wanted: PriceQuery) -> Quote:
    """The highest quote; an estimate if prices differ or it is for another type or place."""
    by_price = {quote.micros_per_hour(is_spot=wanted.is_spot): quote for quote in quotes}
    quote = by_price[max(micros for micros in by_price if micros is not None)]
    if len(by_price) == 1 and (wanted.is_exact(quote) or _is_one_price(quotes, wanted)):
        return quote
    where = quote.region or quote.cloud
    return replace(
        quote,
        zone=None,
        is_estimate=True,
        source=f"{quote.source}: the highest of {where}",
    )


def _is_one_price(quotes: Sequence[Quote], wanted: PriceQuery) -> bool:
    """Whether a region has a single price, which is always true on demand."""
    if wanted.region is None:
        return False
    same_type = all(
        wanted.instance_type is None
        or _equal_ignoring_case(wanted.instance_type, quote.instance_type)
        for quote in quotes
    )
    return same_type and (not wanted.is_spot or len({quote.zone for quote in quotes}) > 1)


def _with_on_demand(chosen: Quote, here: Sequence[Quote], wanted: PriceQuery) -> Quote:
    """The quote with the on-demand price of its region if its source lacks one."""
    if chosen.on_demand_micros_per_hour is not None or not wanted.is_spot:
        return chosen
    for tier in QuoteSource:
        full = [
            quote.on_demand_micros_per_hour
            for quote in here
            if quote.tier is tier and quote.region == chosen.region
            if quote.on_demand_micros_per_hour is not None
        ]
        if full:
            return replace(chosen, on_demand_micros_per_hour=min(full))
    return chosen


def _equal_ignoring_case(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one.casefold() == other.casefold()


def current_first(quotes: Iterable[Quote], now: datetime) -> tuple[Quote, ...]:
    """The quotes in their order, with old ones last."""
    return tuple(sorted(quotes, key=lambda quote: quote.is_old(now)))


def without_old(quotes: Iterable[Quote], now: datetime) -> tuple[Quote, ...]:
    """The quotes without old ones; all quotes if all are old."""
    known = tuple(quotes)
    return tuple(quote for quote in known if not quote.is_old(now)) or known
