"""What a node is taken to cost where nobody has told it: high, marked, and never nothing.

The first of these that can be said:

1. it is asked for as spot, and the on-demand price of the region is known: that, as spot is never sold above it;
2. the same node elsewhere: the dearest, on demand;
3. the same accelerator in another number: the dearest of them for one, times the number;
4. an accelerator that is stronger, and so dearer: the same of that one;
5. `ACCELERATOR_MICROS` for each accelerator, or `NODE_MICROS` for a node of which nothing is known.

An on-demand price is not estimated beside a spot price: what is saved would then be an invention, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from holdfast.domain.pricing.quotes import PriceQuery, Quote, QuoteSource, choose

ACCELERATOR_MICROS: Final = 15_000_000
"""An hour of one accelerator of which nothing is known: above what a B200 costs on demand. Bigger: limits on money stop
jobs that are cheap. Smaller: they let pass what is dear."""
NODE_MICROS: Final = 60_000_000
"""An hour of a node of which not even the accelerators are known: above every node that is sold as spot."""
LADDER: Final = ("T4", "L4", "V100", "V100-32GB", "A100", "A100-80GB", "H100", "H200")
"""Each is cheaper than those after it, wherever both are sold."""


def resolve(quotes: Iterable[Quote], wanted: PriceQuery, at: datetime) -> Quote:
    """The price of one node: the one that is believed, or an estimate as of `at`. It has the price that is wanted."""
    known = tuple(quotes)
    return choose(known, wanted) or estimate(known, wanted, at)


def estimate(quotes: Iterable[Quote], wanted: PriceQuery, at: datetime) -> Quote:
    """What a node is taken to cost of which no quote tells the price that is wanted."""
    known = tuple(quotes)
    if wanted.is_spot and (full := choose(known, replace(wanted, is_spot=False))):
        assert full.on_demand_micros_per_hour is not None, "it was asked for"
        return replace(
            full,
            spot_micros_per_hour=full.on_demand_micros_per_hour,
            tier=QuoteSource.ESTIMATE,
            is_estimate=True,
            source=f"estimate: no spot price is known, so it is the on-demand price ({full.source})",
        )
    if same := [quote for quote in known if wanted.fits(quote)] if _says_what(wanted) else []:
        dearest = max(same, key=lambda quote: quote.dearest_micros)
        where = "/".join(filter(None, (dearest.cloud, dearest.region)))
        return _guess(
            wanted,
            dearest.dearest_micros,
            dearest.as_of,
            f"the dearest of its kind, in {where} ({dearest.source})",
        )
    if wanted.accelerator and wanted.count:
        return _by_accelerator(known, wanted, at)
    return _guess(wanted, NODE_MICROS, at, "nothing is known of such a node")


def _by_accelerator(known: Sequence[Quote], wanted: PriceQuery, at: datetime) -> Quote:
    assert wanted.accelerator
    for name in _stand_ins(wanted.accelerator):
        alike = [
            q for q in known if (q.accelerator or "").casefold() == name.casefold() and q.count
        ]
        if alike:
            dearest = max(alike, key=lambda quote: quote.dearest_micros / quote.count)
            micros = -(-dearest.dearest_micros * wanted.count // dearest.count)
            what = f"{wanted.count:g} times the dearest {dearest.accelerator} ({dearest.source})"
            return _guess(wanted, int(micros), dearest.as_of, what)
    micros = int(-(-ACCELERATOR_MICROS * wanted.count // 1))
    return _guess(wanted, micros, at, f"nothing is known of {wanted.accelerator}")


def _stand_ins(name: str) -> Sequence[str]:
    """The accelerator itself, and those that are stronger."""
    by_case = {known.casefold(): n for n, known in enumerate(LADDER)}
    rung = by_case.get(name.casefold())
    return (name,) if rung is None else LADDER[rung:]


def _says_what(wanted: PriceQuery) -> bool:
    return wanted.instance_type is not None or wanted.accelerator is not None


def _guess(wanted: PriceQuery, micros: int, as_of: datetime, why: str) -> Quote:
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
