"""The dated list of prices that this version brings along, for where nothing newer is at hand.

The port: all that is known of prices, asked in the order in which it is believed.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import IO

from holdfast.domain.pricing.estimates import resolve
from holdfast.domain.pricing.price_list import PriceRow, Reading, RejectedRow, read_rows
from holdfast.domain.pricing.quotes import Change, PriceQuery, Quote, QuoteSource
from holdfast.ports import Clock, PriceList
from holdfast.pricing.aws import AwsSpot, connect
from holdfast.pricing.skypilot_catalog import SkyCatalog


@cache
def of_this_version() -> Reading:
    """The snapshot in the wheel."""
    with (resources.files(__package__) / "snapshot.csv").open(encoding="utf-8") as stream:
        return read_snapshot(stream)


def read_snapshot(stream: IO[str]) -> Reading:
    """The quotes of a snapshot, and its rows that lie: it holds them as they were found.

    AWS's zones are ids in it, or left out: names differ from account to account.
    """
    reading = Reading()
    lines = sorted(csv.DictReader(stream), key=_dated)
    for (as_of, source), group in itertools.groupby(lines, _dated):
        moment = datetime.fromisoformat(as_of).replace(tzinfo=UTC)
        told_by = f"snapshot: {source}"
        reading += read_rows(_rows(group), as_of=moment, source=told_by, tier=QuoteSource.SNAPSHOT)
    return reading


def _dated(line: dict[str, str]) -> tuple[str, str]:
    return line["as_of"], line["source"]


def _rows(lines: Iterable[dict[str, str]]) -> Iterable[PriceRow]:
    return (
        PriceRow(
            cloud=line["cloud"],
            region=line["region"],
            zone=line["zone"],
            instance_type=line["instance_type"],
            accelerator=line["accelerator"],
            count=line["count"],
            on_demand=line["on_demand_usd_per_hour"],
            spot=line["spot_usd_per_hour"],
        )
        for line in lines
    )


@dataclass
class Catalog:
    """What nodes cost. Blocking: call it from a thread."""

    sky: SkyCatalog
    brought: Reading
    live: AwsSpot | None = None
    """None: AWS is never asked."""

    def quote(self, wanted: PriceQuery, at: datetime) -> Quote:
        """The price of one node at a moment; estimated high, and marked, where nobody tells it."""
        return resolve(self._all(wanted, at), wanted, at)

    def history(self, wanted: PriceQuery, since: datetime, until: datetime) -> Sequence[Change]:
        """How the price of one node has changed; empty where nobody tells."""
        if self.live is None or wanted.cloud != "aws":
            return ()
        return self.live.history(wanted, since, until)

    def find(self, wanted: PriceQuery, at: datetime) -> PriceList:
        """All prices of a kind of node, and the rows about it that are not believed.

        AWS is asked only about one kind of node in one region: to ask about all takes longer than anybody waits.
        """
        known = self._all(wanted, at)
        files = Reading(refused=self.sky.read(wanted.cloud).refused + self.brought.refused)
        told = [quote for quote in known if wanted.is_there(quote) and _is_meant(wanted, quote)]
        return PriceList(
            quotes=_best(told),
            refused=tuple(item for item in files.refused if _is_about(wanted, item)),
        )

    def _told(self, wanted: PriceQuery) -> tuple[Quote, ...]:
        return self.sky.quotes(wanted) + self.brought.quotes

    def _all(self, wanted: PriceQuery, at: datetime) -> tuple[Quote, ...]:
        told = self._told(wanted)
        region = wanted.region
        says_what = wanted.accelerator or wanted.instance_type
        if (
            self.live is None
            or region is None
            or wanted.cloud not in (None, "aws")
            or not says_what
        ):
            return told
        # The types that AWS sells there for such a node: live prices know types alone.
        like = {
            quote.instance_type: quote
            for quote in told
            if quote.cloud == "aws" and quote.instance_type
            if quote.region == region and _is_meant(wanted, quote)
        }
        types = {kind for kind in like if kind} | ({wanted.instance_type or ""} - {""})
        here = {quote.region for quote in told if quote.cloud == "aws"}
        if wanted.cloud is None and region not in here:
            return told
        names = self.live.zone_names(region)
        live = [
            replace(
                quote,
                accelerator=like[kind].accelerator if kind in like else wanted.accelerator,
                count=like[kind].count if kind in like else wanted.count,
                on_demand_micros_per_hour=_on_demand(told, kind, region),
            )
            for kind in sorted(types)
            for quote in self.live.quotes(region, kind, at)
        ]
        return (*live, *(_named(quote, region, names) for quote in told))


def open_catalog(folders: Sequence[Path], clock: Clock, *, asks_aws: bool) -> Catalog:
    """The catalog of a service: SkyPilot's from the first of `folders` that has it, and AWS live if it is to be asked."""
    live = AwsSpot(clock, connect) if asks_aws else None
    return Catalog(SkyCatalog(folders), of_this_version(), live)


def _is_meant(wanted: PriceQuery, quote: Quote) -> bool:
    """Whether a quote is of the kind that is asked for, of which a list may leave out all, or the number alone."""
    if wanted.accelerator and not wanted.count:
        return (quote.accelerator or "").casefold() == wanted.accelerator.casefold()
    return wanted.fits(quote)


def _is_about(wanted: PriceQuery, refusal: RejectedRow) -> bool:
    row = refusal.row
    return (
        wanted.cloud in (None, row.cloud)
        and wanted.region in (None, row.region)
        and (wanted.accelerator or row.accelerator).casefold() == row.accelerator.casefold()
        and (not wanted.count or row.count == "" or _count(row.count) == wanted.count)
    )


def _count(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _named(quote: Quote, region: str, names: Mapping[str, str]) -> Quote:
    """The quote with the name of its zone instead of the id, where this account has one."""
    is_there = quote.cloud == "aws" and quote.region == region
    return (
        replace(quote, zone=names.get(quote.zone, quote.zone)) if is_there and quote.zone else quote
    )


def _on_demand(told: Iterable[Quote], kind: str, region: str) -> int | None:
    """The on-demand price of a type in a region of AWS, of the best source that tells it."""
    own = (q for q in told if (q.cloud, q.region, q.instance_type) == ("aws", region, kind))
    return next((m for q in own if (m := q.on_demand_micros_per_hour) is not None), None)


def _best(told: Iterable[Quote]) -> tuple[Quote, ...]:
    """Of each kind of node at each place, the quote that is believed most, cheapest accelerator first."""
    best: dict[tuple[object, ...], Quote] = {}
    for quote in sorted(told, key=lambda q: q.as_of, reverse=True):
        place = (quote.cloud, quote.region, quote.zone, quote.instance_type, quote.count)
        known = best.get(place)
        if known is None or _is_better(quote, known):
            best[place] = quote
    return tuple(sorted(best.values(), key=_each))


def _is_better(quote: Quote, known: Quote) -> bool:
    order = list(type(quote.tier))
    if quote.tier is known.tier:  # Several zones without their names: the dearest is told.
        return quote.as_of == known.as_of and quote.dearest_micros > known.dearest_micros
    return order.index(quote.tier) < order.index(known.tier)


def _each(quote: Quote) -> tuple[float, str, str, str]:
    """The price of one accelerator, then the place."""
    cheapest = quote.spot_micros_per_hour or quote.on_demand_micros_per_hour or 0
    return (cheapest / (quote.count or 1), quote.cloud, quote.region or "", quote.zone or "")
