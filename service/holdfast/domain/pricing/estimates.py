"""Price estimates for nodes without a quote: high, marked as estimates, and never zero.

The first applicable rule:

1. spot with a known on-demand price of the region: that price, as spot is never sold above it;
2. the same node elsewhere: the highest on-demand price;
3. the same accelerator in another count: the highest price per accelerator, times the count;
4. a stronger, thus more expensive accelerator: the same for that one;
5. `ACCELERATOR_MICROS` per accelerator, or `NODE_MICROS` for an unknown node.

On-demand prices are not estimated beside a spot price: the computed savings would then also be invented.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from holdfast.domain.pricing.quotes import PriceQuery, Quote, QuoteSource, choose_quote

ACCELERATOR_MICROS: Final = 15_000_000
"""Hourly micro-dollars of an unknown accelerator, above the on-demand price of a B200. A higher value lets cost limits stop cheap
jobs; a lower value lets expensive ones pass.
"""
NODE_MICROS: Final = 60_000_000
"""Hourly micro-dollars of a node with unknown accelerators, above every node sold as spot."""
ACCELERATORS_BY_PRICE: Final = (
    "T4",
    "L4",
    "V100",
    "V100-32GB",
    "A100",
    "A100-80GB",
    "H100",
    "H200",
)
"""Accelerators in ascending order of price, wherever two of them are sold."""


def resolve(quotes: Iterable[Quote], wanted: PriceQuery, at: datetime) -> Quote:
    """The price of one node: the trusted quote, or an estimate as of `at`.

    It always contains the wanted price.
    """
    known = tuple(quotes)
    return choose_quote(known, wanted) or estimate(known, wanted, at)


def estimate(quotes: Iterable[Quote], wanted: PriceQuery, at: datetime) -> Quote:
    """Estimate the price of a node that no quote contains."""
    known = tuple(quotes)
    if wanted.is_spot and (full := choose_quote(known, replace(wanted, is_spot=False))):
        assert full.on_demand_micros_per_hour is not None, "it was asked for"
        return replace(
            full,
            spot_micros_per_hour=full.on_demand_micros_per_hour,
            tier=QuoteSource.ESTIMATE,
            is_estimate=True,
            source=f"estimate: no spot price is known; the on-demand price ({full.source})",
        )
    if (
        same := [quote for quote in known if wanted.matches_node(quote)]
        if _identifies_node(wanted)
        else []
    ):
        dearest = max(same, key=lambda quote: quote.dearest_micros)
        where = "/".join(filter(None, (dearest.cloud, dearest.region)))
        return _estimated_quote(
            wanted,
            dearest.dearest_micros,
            dearest.as_of,
            f"the most expensive of its kind, in {where} ({dearest.source})",
        )
    if wanted.accelerator and wanted.count:
        return _by_accelerator(known, wanted, at)
    return _estimated_quote(wanted, NODE_MICROS, at, "unknown node type")


def _by_accelerator(known: Sequence[Quote], wanted: PriceQuery, at: datetime) -> Quote:
    assert wanted.accelerator
    for name in _substitutes(wanted.accelerator):
        alike = [
            q for q in known if (q.accelerator or "").casefold() == name.casefold() and q.count
        ]
        if alike:
            dearest = max(alike, key=lambda quote: quote.dearest_micros / quote.count)
            micros = -(-dearest.dearest_micros * wanted.count // dearest.count)
            what = f"{wanted.count:g} times the most expensive {dearest.accelerator} ({dearest.source})"
            return _estimated_quote(wanted, int(micros), dearest.as_of, what)
    micros = int(-(-ACCELERATOR_MICROS * wanted.count // 1))
    return _estimated_quote(wanted, micros, at, f"unknown accelerator {wanted.accelerator}")


def _substitutes(name: str) -> Sequence[str]:
    """The accelerator itself, followed by stronger ones."""
    by_case = {known.casefold(): n for n, known in enumerate(ACCELERATORS_BY_PRICE)}
    rung = by_case.get(name.casefold())
    return (name,) if rung is None else ACCELERATORS_BY_PRICE[rung:]


def _identifies_node(wanted: PriceQuery) -> bool:
    return wanted.instance_type is not None or wanted.accelerator is not None


def _estimated_quote(wanted: PriceQuery, micros: int, as_of: datetime, why: str) -> Quote:
    return Quote(
        cloud=wanted.cloud or "",
        region=wanted.region,
        zone=wanted.zone,
        instance_type=wanted.instance_type,
        accelerator=wanted.accelerator,
        count=wanted.count,
        on_demand_micros_per_hour=None if wanted.is_spot else micros,
        spot_micros_per_hour=micros if wanted.is_spot else None,
        as_of=as_of,
        source=f"estimate: {why}",
        tier=QuoteSource.ESTIMATE,
        is_estimate=True,
    )
