"""Nodes that can be had in the demonstration, and what they cost: prices that wander, told by a seed.

Every answer depends on the seed and on what is asked about, never on what was asked before. Prices of nodes on demand are
of the size that clouds ask for such nodes; nobody pays any of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from holdfast.domain.jobfile.resource_options import candidates
from holdfast.domain.jobs.observation import Placement
from holdfast.domain.pricing.estimates import resolve
from holdfast.domain.pricing.quotes import Change, PriceQuery, Quote, QuoteSource, price_at, within
from holdfast.ports import PriceList

SOURCE: Final = "simulated market of a demonstration"
FAR: Final = timedelta(days=365)
"""How long prices go on to wander after the beginning. Shorter: a demonstration that stays open has steady ones."""
_LONGEST_H: Final = 9.0
_SHORTEST_H: Final = 2.0
"""Between two changes of a price."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MarketType:
    """A kind of node."""

    cloud: str
    instance_type: str
    accelerator: str
    count: int
    on_demand_micros: int
    spot_share: float
    """What spot costs on average, as a share of that."""
    zones: tuple[str, ...]
    """As a launcher tells them: cloud, region, zone."""


KINDS: Final = (
    MarketType(
        cloud="aws",
        instance_type="p4d.24xlarge",
        accelerator="A100",
        count=8,
        on_demand_micros=21_957_000,
        spot_share=0.41,
        zones=(
            "aws/us-east-1/us-east-1a",
            "aws/us-east-2/us-east-2b",
            "aws/us-west-2/us-west-2c",
            "aws/eu-west-1/eu-west-1b",
        ),
    ),
    MarketType(
        cloud="aws",
        instance_type="p5.48xlarge",
        accelerator="H100",
        count=8,
        on_demand_micros=55_040_000,
        spot_share=0.38,
        zones=(
            "aws/us-east-1/us-east-1a",
            "aws/us-east-2/us-east-2b",
            "aws/us-west-2/us-west-2c",
        ),
    ),
    MarketType(
        cloud="aws",
        instance_type="g5.12xlarge",
        accelerator="A10G",
        count=4,
        on_demand_micros=5_672_000,
        spot_share=0.44,
        zones=("aws/us-east-2/us-east-2b", "aws/us-west-2/us-west-2c", "aws/eu-west-1/eu-west-1b"),
    ),
    MarketType(
        cloud="gcp",
        instance_type="a2-highgpu-8g",
        accelerator="A100",
        count=8,
        on_demand_micros=29_387_000,
        spot_share=0.40,
        zones=("gcp/us-central1/us-central1-a",),
    ),
)

ZONE_HAZARDS: Final[Mapping[str, float]] = {
    "aws/us-east-1/us-east-1a": 2.1,
    "aws/us-east-2/us-east-2b": 0.6,
    "aws/us-west-2/us-west-2c": 1.0,
    "aws/eu-west-1/eu-west-1b": 1.3,
    "gcp/us-central1/us-central1-a": 0.9,
}
"""How many times as often as on average nodes are taken there."""
DAY: Final = (
    *(0.4, 0.4, 0.3, 0.3, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2, 1.5, 1.8),
    *(1.9, 2.0, 2.0, 1.9, 1.7, 1.5, 1.2, 1.0, 0.8, 0.6, 0.5, 0.4),
)
"""The same for each hour since the story began, day after day: the market is short of nodes while people work."""


@cache
def kind_of(accelerator: str, count: int, cloud: str | None) -> MarketType:
    """The kind of node that has such accelerators; the smallest one where nobody sells them here."""
    fits = [
        kind
        for kind in KINDS
        if kind.accelerator == accelerator and kind.count == count and cloud in (None, kind.cloud)
    ]
    return fits[0] if fits else min(KINDS, key=lambda kind: kind.on_demand_micros)


def kind_for(task: Mapping[str, Any]) -> MarketType | None:
    """The kind of node that a rendered task asks for first; None where it asks for this machine."""
    first = candidates(task.get("resources") or {})[0]
    if first.cloud == "local":
        return None
    said = first.words.get("accelerators")
    one = said[0] if isinstance(said, list) and said else said
    if isinstance(one, Mapping):
        one = next((f"{name}:{count or 1}" for name, count in one.items()), None)
    name, _, count = str(one or "").partition(":")
    return kind_of(name.strip(), int(count) if count.isdecimal() else 1, first.cloud)


@dataclass(frozen=True)
class Market:
    """Prices since `start`: a catalog, and what launchers are told of it."""

    seed: int
    start: datetime
    _paths: dict[tuple[str, str], tuple[Change, ...]] = field(default_factory=dict)

    def quote(self, wanted: PriceQuery, at: datetime) -> Quote:
        """The price of one node at a moment; estimated high, and marked, where this market has none."""
        return resolve(self._quotes(at), wanted, at)

    def history(self, wanted: PriceQuery, since: datetime, until: datetime) -> Sequence[Change]:
        """The spot price of one node at `since`, and its changes until `until`; empty for what is not sold here."""
        return [
            change
            for kind, zone in self._places()
            if _matches(kind, zone, wanted)
            for change in within(self.path(kind, zone), since, until)
        ]

    def find(self, wanted: PriceQuery, at: datetime) -> PriceList:
        """All prices of a kind of node at the places that are meant, the cheapest accelerator first."""
        told = [
            quote
            for quote in self._quotes(at)
            if wanted.is_there(quote)
            and wanted.accelerator in (None, quote.accelerator)
            and wanted.count in (0, quote.count)
        ]
        return PriceList(quotes=tuple(sorted(told, key=_each)), refused=())

    def priced(self, placement: Placement, kind: MarketType) -> Placement:
        """A placement of the simulated cloud as this market sells it."""
        full = kind.on_demand_micros
        node = full
        if placement.is_spot and (
            told := price_at(self.path(kind, placement.zone), placement.ready_at)
        ):
            node = told.micros_per_hour
        return _as_sold(placement, kind, node * placement.nodes, full * placement.nodes)

    def path(self, kind: MarketType, zone: str) -> tuple[Change, ...]:
        """The spot price of a node from a day before the beginning on, as its changes."""
        key = kind.instance_type, zone
        if key not in self._paths:
            self._paths[key] = tuple(self._wander(kind, zone))
        return self._paths[key]

    def _wander(self, kind: MarketType, zone: str) -> Iterator[Change]:
        draw = random.Random(f"{self.seed}/price/{kind.instance_type}/{zone}")
        level, at = draw.uniform(0.8, 1.2), self.start - timedelta(days=1)
        while at < self.start + FAR:
            micros = kind.on_demand_micros * kind.spot_share * level
            yield Change(at=at, micros_per_hour=100 * round(micros / 100))
            at += timedelta(minutes=round(60 * draw.uniform(_SHORTEST_H, _LONGEST_H)))
            level = min(1.6, max(0.55, level + 0.2 * (1 - level) + draw.gauss(0, 0.09)))

    def _quotes(self, at: datetime) -> tuple[Quote, ...]:
        return tuple(self._quoted(kind, zone, at) for kind, zone in self._places())

    def _quoted(self, kind: MarketType, zone: str, at: datetime) -> Quote:
        _, region, name = zone.split("/")
        told = price_at(self.path(kind, zone), at)
        return Quote(
            cloud=kind.cloud,
            region=region,
            zone=name,
            instance_type=kind.instance_type,
            accelerator=kind.accelerator,
            count=kind.count,
            on_demand_micros_per_hour=kind.on_demand_micros,
            spot_micros_per_hour=told.micros_per_hour if told else None,
            as_of=told.at if told else at,
            source=SOURCE,
            tier=QuoteSource.LIVE,
        )

    def _places(self) -> Iterator[tuple[MarketType, str]]:
        for kind in KINDS:
            for zone in kind.zones:
                yield kind, zone


def _matches(kind: MarketType, zone: str, wanted: PriceQuery) -> bool:
    """Whether a node there is the one that is asked for, down to its zone."""
    return zone == f"{wanted.cloud}/{wanted.region}/{wanted.zone}" and (
        wanted.instance_type == kind.instance_type
    )


def _as_sold(placement: Placement, kind: MarketType, micros: int, full_micros: int) -> Placement:
    return replace(
        placement,
        micros_per_hour=micros,
        on_demand_micros_per_hour=full_micros,
        cloud=kind.cloud,
        instance_type=kind.instance_type,
    )


def _each(quote: Quote) -> tuple[float, str, str]:
    """The price of one accelerator, then the place."""
    cheapest = quote.spot_micros_per_hour or quote.on_demand_micros_per_hour or 0
    return cheapest / (quote.count or 1), quote.region or "", quote.zone or ""
