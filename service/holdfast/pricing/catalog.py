"""The price catalog: all price sources in order of trust, and the bundled price list."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import IO, Final

from holdfast.domain.charges.resource_prices import ResourcePrices
from holdfast.domain.jobfile.bounded_yaml import NotReadable, load
from holdfast.domain.pricing.estimates import resolve
from holdfast.domain.pricing.price_list import ParsedPriceList, PriceRow, RejectedRow, read_rows
from holdfast.domain.pricing.quotes import PricePoint, PriceQuery, Quote, QuoteSource
from holdfast.errors import BadRequest
from holdfast.ports import Clock, PriceList
from holdfast.pricing.aws import AwsSpot, connect
from holdfast.pricing.skypilot_catalog import SkyPilotCatalog

RESOURCE_PRICES: Final = "HOLDFAST_RESOURCE_PRICES"
"""The setting that names a file of one's own."""


@cache
def bundled_snapshot() -> ParsedPriceList:
    """Return the price list bundled in the wheel."""
    with (resources.files(__package__) / "snapshot.csv").open(encoding="utf-8") as stream:
        return read_snapshot(stream)


def read_snapshot(stream: IO[str]) -> ParsedPriceList:
    """Parse a price list into quotes and rejected rows; it contains rows as they were found.

    AWS zones are ids or missing, because zone names differ between accounts.
    """
    reading = ParsedPriceList()
    lines = sorted(csv.DictReader(stream), key=_dated)
    for (as_of, source), group in itertools.groupby(lines, _dated):
        moment = datetime.fromisoformat(as_of).replace(tzinfo=UTC)
        origin = f"snapshot: {source}"
        reading += read_rows(_rows(group), as_of=moment, source=origin, tier=QuoteSource.SNAPSHOT)
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
    """Node prices from all sources. Blocking: call it from a thread."""

    sky: SkyPilotCatalog
    bundled: ParsedPriceList
    live: AwsSpot | None = None
    """Live AWS prices; None: AWS is not asked."""

    def quote(self, query: PriceQuery, at: datetime) -> Quote:
        """Return the price of one node at a moment; without a source, a high, marked estimate."""
        return resolve(self._all_quotes(query, at), query, at)

    def history(self, query: PriceQuery, since: datetime, until: datetime) -> Sequence[PricePoint]:
        """Return the price history of one node; empty if unknown."""
        if self.live is None or query.cloud != "aws":
            return ()
        return self.live.history(query, since, until)

    def find(self, query: PriceQuery, at: datetime) -> PriceList:
        """Return all prices of a kind of node, and the rejected rows about it.

        AWS is asked only about one kind of node in one region, because asking about all takes too long.
        """
        known = self._all_quotes(query, at)
        files = ParsedPriceList(
            rejected=self.sky.read(query.cloud).rejected + self.bundled.rejected
        )
        quotes = [
            quote for quote in known if query.matches_location(quote) and _matches(query, quote)
        ]
        return PriceList(
            quotes=_best(quotes),
            refused=tuple(item for item in files.rejected if _is_about(query, item)),
        )

    def _stored_quotes(self, query: PriceQuery) -> tuple[Quote, ...]:
        return self.sky.quotes(query) + self.bundled.quotes

    def _all_quotes(self, query: PriceQuery, at: datetime) -> tuple[Quote, ...]:
        quotes = self._stored_quotes(query)
        region = query.region
        requested = query.accelerator or query.instance_type
        if self.live is None or region is None or query.cloud not in (None, "aws") or not requested:
            return quotes
        # Instance types that AWS sells there for such a node; live prices are by type only.
        like = {
            quote.instance_type: quote
            for quote in quotes
            if quote.cloud == "aws" and quote.instance_type
            if quote.region == region and _matches(query, quote)
        }
        types = {kind for kind in like if kind} | ({query.instance_type or ""} - {""})
        here = {quote.region for quote in quotes if quote.cloud == "aws"}
        if query.cloud is None and region not in here:
            return quotes
        names = self.live.zone_names(region)
        live = [
            replace(
                quote,
                accelerator=like[kind].accelerator if kind in like else query.accelerator,
                count=like[kind].count if kind in like else query.count,
                on_demand_micros_per_hour=_on_demand(quotes, kind, region),
            )
            for kind in sorted(types)
            for quote in self.live.quotes(region, kind, at)
        ]
        return (*live, *(_with_zone_name(quote, region, names) for quote in quotes))


def open_catalog(folders: Sequence[Path], clock: Clock, *, asks_aws: bool) -> Catalog:
    """Open the catalog: SkyPilot's from the first of `folders` with one, and AWS if enabled."""
    live = AwsSpot(clock, connect) if asks_aws else None
    return Catalog(SkyPilotCatalog(folders), bundled_snapshot(), live)


def _matches(query: PriceQuery, quote: Quote) -> bool:
    """Whether a quote matches the requested kind, which may omit the count or everything."""
    if query.accelerator and not query.count:
        return (quote.accelerator or "").casefold() == query.accelerator.casefold()
    return query.matches_node(quote)


def _is_about(query: PriceQuery, refusal: RejectedRow) -> bool:
    row = refusal.row
    return (
        query.cloud in (None, row.cloud)
        and query.region in (None, row.region)
        and (query.accelerator or row.accelerator).casefold() == row.accelerator.casefold()
        and (not query.count or row.count == "" or _count(row.count) == query.count)
    )


def _count(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _with_zone_name(quote: Quote, region: str, names: Mapping[str, str]) -> Quote:
    """Return the quote with its zone's name instead of the id, if the account has one."""
    is_there = quote.cloud == "aws" and quote.region == region
    return (
        replace(quote, zone=names.get(quote.zone, quote.zone)) if is_there and quote.zone else quote
    )


def _on_demand(quotes: Iterable[Quote], kind: str, region: str) -> int | None:
    """Return the on-demand price of a type in an AWS region, from the most trusted source."""
    own = (q for q in quotes if (q.cloud, q.region, q.instance_type) == ("aws", region, kind))
    return next((m for q in own if (m := q.on_demand_micros_per_hour) is not None), None)


def _best(quotes: Iterable[Quote]) -> tuple[Quote, ...]:
    """Return the most trusted quote per kind of node and location, cheapest accelerator first."""
    best: dict[tuple[object, ...], Quote] = {}
    for quote in sorted(quotes, key=lambda q: q.as_of, reverse=True):
        place = (quote.cloud, quote.region, quote.zone, quote.instance_type, quote.count)
        known = best.get(place)
        if known is None or _is_better(quote, known):
            best[place] = quote
    return tuple(sorted(best.values(), key=_sort_key))


def _is_better(quote: Quote, known: Quote) -> bool:
    order = list(type(quote.tier))
    if quote.tier is known.tier:  # Among several unnamed zones, the highest price is used.
        return quote.as_of == known.as_of and quote.dearest_micros > known.dearest_micros
    return order.index(quote.tier) < order.index(known.tier)


def _sort_key(quote: Quote) -> tuple[float, str, str, str]:
    """Sort by price per accelerator, then by location."""
    cheapest = quote.spot_micros_per_hour or quote.on_demand_micros_per_hour or 0
    return (cheapest / (quote.count or 1), quote.cloud, quote.region or "", quote.zone or "")


@cache
def bundled_resource_prices() -> ResourcePrices:
    """Return the prices bundled in the wheel."""
    name = "resource_prices.yaml"
    file = resources.files("holdfast.domain.charges") / name
    return ResourcePrices.parse(load(file.read_text(encoding="utf-8")), name)


def open_resource_prices(own: Path | None) -> ResourcePrices:
    """Return the prices in a file of one's own, and for what it lacks the bundled ones.

    Raises:
        BadRequest: the file cannot be read, or a price in it is invalid; the message names it.
    """
    bundled = bundled_resource_prices()
    if own is None:
        return bundled
    where = f"{RESOURCE_PRICES}={own}"
    try:
        raw = load(own.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest(f"{where}: cannot be read: {error.strerror}; correct the path") from error
    except (UnicodeDecodeError, NotReadable) as error:
        raise BadRequest(f"{where}: is not YAML: {error}; correct the file") from error
    return bundled.with_own(ResourcePrices.parse(raw, where))
