"""Prices of nodes: what was told by whom and when, and which of several is believed.

One is always given. What nobody has told is estimated high and marked (`holdfast.domain.pricing.estimates`): a limit that
stops a job too early can be raised, and one that stops it too late has spent the money.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final


class QuoteSource(StrEnum):
    """How a price became known; the first is believed most."""

    LIVE = "live"
    """The cloud itself was asked."""
    CATALOG = "catalog"
    """SkyPilot's catalog on this machine, which SkyPilot keeps fresh."""
    SNAPSHOT = "snapshot"
    """The dated list that this version brings along."""
    ESTIMATE = "estimate"
    """Nobody has told it: see `holdfast.domain.pricing.estimates`."""


_ORDER: Final = {tier: n for n, tier in enumerate(QuoteSource)}


OLD: Final = timedelta(days=90)
"""Age from which a price is marked and listed last. A lower value hides price lists that are refreshed by the quarter; a higher
value ranks prices of another market among those of today."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """What one node of a kind costs at a place."""

    cloud: str
    """In SkyPilot's spelling; empty where an estimate is for no cloud in particular."""
    region: str | None
    zone: str | None
    """None: it holds for every zone of the region. Of AWS, files tell ids (use1-az1), which are the same for all
    accounts, and accounts tell names (us-east-1a), which are not."""
    instance_type: str | None
    accelerator: str | None
    """In SkyPilot's spelling; None for a node without one, or where the source does not say."""
    count: float
    """Accelerators of the node; 0 where there are none, or the source does not say."""
    on_demand_micros_per_hour: int | None
    """None: not sold so, or not known."""
    spot_micros_per_hour: int | None
    """None: no market, or not known."""
    as_of: datetime
    """When the source had it so."""
    source: str
    """Who told it, for people."""
    tier: QuoteSource
    is_estimate: bool = False
    """Whether any of the two is but taken to be so."""
    repairs: tuple[str, ...] = ()
    """Names of the rules that dropped one of its prices as a lie."""

    def __post_init__(self) -> None:
        told = [self.on_demand_micros_per_hour, self.spot_micros_per_hour]
        known = [micros for micros in told if micros is not None]
        assert known, "a quote without a price is none"
        assert min(known) > 0, "nothing that is sold is free"

    def micros_per_hour(self, *, is_spot: bool) -> int | None:
        """The price of the node as spot, or on demand; None where it is not known."""
        return self.spot_micros_per_hour if is_spot else self.on_demand_micros_per_hour

    def is_old(self, now: datetime) -> bool:
        """Whether the price may have changed so much since that it is not comparable with newer ones."""
        return now - self.as_of > OLD

    @property
    def dearest_micros(self) -> int:
        """The dearer of its prices."""
        return max(self.on_demand_micros_per_hour or 0, self.spot_micros_per_hour or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceQuery:
    """The node whose price is asked for. What is None is not known, or does not matter."""

    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    accelerator: str | None = None
    count: float = 0
    is_spot: bool = True

    def fits(self, quote: Quote) -> bool:
        """Whether a quote is of this kind of node, wherever it stands."""
        same_gpus = _same(self.accelerator, quote.accelerator) and self.count == quote.count
        if self.accelerator is None:
            return self.instance_type is None or _same(self.instance_type, quote.instance_type)
        # GCP sells GPUs apart from their hosts: the same host with other GPUs, or without, is another node.
        if quote.accelerator is None and quote.cloud != "gcp":
            return self.instance_type is not None and _same(self.instance_type, quote.instance_type)
        return same_gpus

    def is_there(self, quote: Quote) -> bool:
        """Whether a quote holds in the cloud and region that are meant."""
        return (self.cloud is None or quote.cloud == self.cloud) and (
            self.region is None or quote.region == self.region
        )

    def is_exact(self, quote: Quote) -> bool:
        """Whether a quote that fits is of the very instance type, and of the very zone."""
        type_fits = self.instance_type is None or _same(self.instance_type, quote.instance_type)
        return type_fits and self.region is not None and quote.zone in (None, self.zone)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A price from a moment on, until the next change."""

    at: datetime
    micros_per_hour: int


def choose(quotes: Iterable[Quote], wanted: PriceQuery) -> Quote | None:
    """The price that is believed, with `wanted`'s own price in it; None where nobody knows one of that region.

    The tier counts before the zone: a price of today for the region is nearer to the truth than one of last year for
    the very zone. Within a tier the zone counts before the region, and then the newer one. Where only the region is
    known, the dearest of its zones is taken, and is an estimate unless they agree.
    """
    here = [quote for quote in quotes if wanted.is_there(quote) and wanted.fits(quote)]
    for tier in QuoteSource:
        told = [quote for quote in here if quote.tier is tier]
        if chosen := _of_one_tier(told, wanted):
            return _with_on_demand(chosen, here, wanted)
        if _is_closed(told, wanted):
            return None  # In a zone without a market, what other zones pay as spot says nothing.
    return None


def price_at(changes: Iterable[Change], moment: datetime) -> Change | None:
    """The last change before a moment, or at it: what was paid then; None where all came later."""
    return max((c for c in changes if c.at <= moment), key=lambda c: c.at, default=None)


def within(changes: Iterable[Change], since: datetime, until: datetime) -> tuple[Change, ...]:
    """The changes of a time, oldest first, and before them the one that held when it began."""
    ordered = sorted(changes, key=lambda c: c.at)
    first = price_at(ordered, since)
    later = [c for c in ordered if since < c.at <= until]
    return (*([first] if first else []), *later)


def _of_one_tier(told: Sequence[Quote], wanted: PriceQuery) -> Quote | None:
    exact = [quote for quote in told if wanted.is_exact(quote)]
    own_zone = [quote for quote in exact if quote.zone is not None]
    for group in (own_zone, exact, [] if _is_closed(told, wanted) else told):
        priced = [q for q in _newest(group) if q.micros_per_hour(is_spot=wanted.is_spot)]
        if priced:
            return _dearest(priced, wanted)
    return None


def _is_closed(told: Sequence[Quote], wanted: PriceQuery) -> bool:
    """Whether the very zone is listed, and without a spot price."""
    own = [quote for quote in told if wanted.zone is not None and quote.zone == wanted.zone]
    return (
        wanted.is_spot
        and bool(own)
        and all(quote.spot_micros_per_hour is None for quote in _newest(own))
    )


def _newest(quotes: Sequence[Quote]) -> list[Quote]:
    """Of each instance type at each place, those that are newest."""
    newest: dict[tuple[str | None, ...], datetime] = {}
    for quote in quotes:
        key = _place(quote)
        newest[key] = max(newest.get(key, quote.as_of), quote.as_of)
    return [quote for quote in quotes if quote.as_of == newest[_place(quote)]]


def _place(quote: Quote) -> tuple[str | None, ...]:
    return quote.cloud, quote.region, quote.zone, quote.instance_type


def _dearest(quotes: Sequence[Quote], wanted: PriceQuery) -> Quote:
    """The dearest quote; an estimate where it is one of several prices, or is of another kind or place."""
    by_price = {quote.micros_per_hour(is_spot=wanted.is_spot): quote for quote in quotes}
    quote = by_price[max(micros for micros in by_price if micros is not None)]
    if len(by_price) == 1 and (wanted.is_exact(quote) or _is_one_price(quotes, wanted)):
        return quote
    where = quote.region or quote.cloud
    return replace(
        quote,
        zone=None,
        is_estimate=True,
        source=f"{quote.source}: the dearest of {where}",
    )


def _is_one_price(quotes: Sequence[Quote], wanted: PriceQuery) -> bool:
    """Whether a whole region has one price: of on-demand nodes, that is so everywhere."""
    if wanted.region is None:
        return False
    same_type = all(
        wanted.instance_type is None or _same(wanted.instance_type, quote.instance_type)
        for quote in quotes
    )
    return same_type and (not wanted.is_spot or len({quote.zone for quote in quotes}) > 1)


def _with_on_demand(chosen: Quote, here: Sequence[Quote], wanted: PriceQuery) -> Quote:
    """The quote with the on-demand price of its region, where the source itself has none."""
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


def _same(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one.casefold() == other.casefold()


def fresh_first(quotes: Iterable[Quote], now: datetime) -> tuple[Quote, ...]:
    """The quotes in their order, with old ones after all others."""
    return tuple(sorted(quotes, key=lambda quote: quote.is_old(now)))


def current(quotes: Iterable[Quote], now: datetime) -> tuple[Quote, ...]:
    """The quotes that are not old; all of them where each one is old."""
    known = tuple(quotes)
    return tuple(quote for quote in known if not quote.is_old(now)) or known
