"""Simulated market of the demonstration: node types and prices that vary by a seed.

Every answer depends only on the seed and the query. On-demand prices are of the size of real ones; nothing is billed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from holdfast.domain.jobfile.resource_options import resource_options
from holdfast.domain.jobs.observation import Placement
from holdfast.domain.pricing.estimates import resolve
from holdfast.domain.pricing.quotes import (
    PricePoint,
    PriceQuery,
    Quote,
    QuoteSource,
    price_at,
    price_points_within,
)
from holdfast.ports import PriceList

SOURCE: Final = "simulated market of a demonstration"
HORIZON: Final = timedelta(days=365)
"""How long prices vary after the start.

A lower value gives constant prices to a demonstration that keeps running.
"""
_LONGEST_H: Final = 9.0
_SHORTEST_H: Final = 2.0
"""Minimum hours between two changes of a price."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeType:
    """A type of node."""

    cloud: str
    instance_type: str
    accelerator: str
    count: int
    on_demand_micros: int
    spot_share: float
    """Mean spot price as a share of the on-demand price."""
    zones: tuple[str, ...]
    """Cloud, region and zone, as launchers report them."""


NODE_TYPES: Final = (
    NodeType(
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
    NodeType(
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
    NodeType(
        cloud="aws",
        instance_type="g5.12xlarge",
        accelerator="A10G",
        count=4,
        on_demand_micros=5_672_000,
        spot_share=0.44,
        zones=("aws/us-east-2/us-east-2b", "aws/us-west-2/us-west-2c", "aws/eu-west-1/eu-west-1b"),
    ),
    NodeType(
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
"""Preemption rates of zones, relative to the mean."""
HOUR_HAZARDS: Final = (
    *(0.4, 0.4, 0.3, 0.3, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2, 1.5, 1.8),
    *(1.9, 2.0, 2.0, 1.9, 1.7, 1.5, 1.2, 1.0, 0.8, 0.6, 0.5, 0.4),
)
"""Preemption rates by hour since the start of the history, repeated daily: capacity is scarce during working hours."""


@cache
def node_type_of(accelerator: str, count: int, cloud: str | None) -> NodeType:
    """Return the node type with these accelerators; the smallest one if none is sold here."""
    fits = [
        kind
        for kind in NODE_TYPES
        if kind.accelerator == accelerator and kind.count == count and cloud in (None, kind.cloud)
    ]
    return fits[0] if fits else min(NODE_TYPES, key=lambda kind: kind.on_demand_micros)


def node_type_for_task(task: Mapping[str, Any]) -> NodeType | None:
    """Return the first node type requested by a rendered task; None for a local task."""
    first = resource_options(task.get("resources") or {})[0]
    if first.cloud == "local":
        return None
    accelerators = first.options.get("accelerators")
    one = accelerators[0] if isinstance(accelerators, list) and accelerators else accelerators
    if isinstance(one, Mapping):
        one = next((f"{name}:{count or 1}" for name, count in one.items()), None)
    name, _, count = str(one or "").partition(":")
    return node_type_of(name.strip(), int(count) if count.isdecimal() else 1, first.cloud)


@dataclass(frozen=True)
class Market:
    """Prices since `start`, as a catalog and as seen by launchers."""

    seed: int
    start: datetime
    _paths: dict[tuple[str, str], tuple[PricePoint, ...]] = field(default_factory=dict)

    def quote(self, wanted: PriceQuery, at: datetime) -> Quote:
        """Return the price of one node at a time, or an estimate marked as such."""
        return resolve(self._quotes(at), wanted, at)

    def history(self, wanted: PriceQuery, since: datetime, until: datetime) -> Sequence[PricePoint]:
        """Return the spot price of a node at `since` and its changes until `until`.

        It is empty if the node is not sold here.
        """
        return [
            change
            for kind, zone in self._places()
            if _matches(kind, zone, wanted)
            for change in price_points_within(self.price_path(kind, zone), since, until)
        ]

    def find(self, wanted: PriceQuery, at: datetime) -> PriceList:
        """List prices of a node type at the matching places, cheapest accelerator first."""
        quotes = [
            quote
            for quote in self._quotes(at)
            if wanted.matches_location(quote)
            and wanted.accelerator in (None, quote.accelerator)
            and wanted.count in (0, quote.count)
        ]
        return PriceList(quotes=tuple(sorted(quotes, key=_price_and_place)), refused=())

    def priced(self, placement: Placement, kind: NodeType) -> Placement:
        """Return a placement of the simulated cloud with the prices of this market."""
        full = kind.on_demand_micros
        node = full
        if placement.is_spot and (
            point := price_at(self.price_path(kind, placement.zone), placement.ready_at)
        ):
            node = point.micros_per_hour
        return _as_sold(placement, kind, node * placement.nodes, full * placement.nodes)

    def price_path(self, kind: NodeType, zone: str) -> tuple[PricePoint, ...]:
        """Return the changes of a node's spot price from one day before the start."""
        key = kind.instance_type, zone
        if key not in self._paths:
            self._paths[key] = tuple(self._random_walk(kind, zone))
        return self._paths[key]

    def _random_walk(self, kind: NodeType, zone: str) -> Iterator[PricePoint]:
        draw = random.Random(f"{self.seed}/price/{kind.instance_type}/{zone}")
        level, at = draw.uniform(0.8, 1.2), self.start - timedelta(days=1)
        while at < self.start + HORIZON:
            micros = kind.on_demand_micros * kind.spot_share * level
            yield PricePoint(at=at, micros_per_hour=100 * round(micros / 100))
            at += timedelta(minutes=round(60 * draw.uniform(_SHORTEST_H, _LONGEST_H)))
            level = min(1.6, max(0.55, level + 0.2 * (1 - level) + draw.gauss(0, 0.09)))

    def _quotes(self, at: datetime) -> tuple[Quote, ...]:
        return tuple(self._quoted(kind, zone, at) for kind, zone in self._places())

    def _quoted(self, kind: NodeType, zone: str, at: datetime) -> Quote:
        _, region, name = zone.split("/")
        point = price_at(self.price_path(kind, zone), at)
        return Quote(
            cloud=kind.cloud,
            region=region,
            zone=name,
            instance_type=kind.instance_type,
            accelerator=kind.accelerator,
            count=kind.count,
            on_demand_micros_per_hour=kind.on_demand_micros,
            spot_micros_per_hour=point.micros_per_hour if point else None,
            as_of=point.at if point else at,
            source=SOURCE,
            tier=QuoteSource.LIVE,
        )

    def _places(self) -> Iterator[tuple[NodeType, str]]:
        for kind in NODE_TYPES:
            for zone in kind.zones:
                yield kind, zone


def _matches(kind: NodeType, zone: str, wanted: PriceQuery) -> bool:
    """Whether a node matches a query, including its zone."""
    return zone == f"{wanted.cloud}/{wanted.region}/{wanted.zone}" and (
        wanted.instance_type == kind.instance_type
    )


def _as_sold(placement: Placement, kind: NodeType, micros: int, full_micros: int) -> Placement:
    return replace(
        placement,
        micros_per_hour=micros,
        on_demand_micros_per_hour=full_micros,
        cloud=kind.cloud,
        instance_type=kind.instance_type,
    )


def _price_and_place(quote: Quote) -> tuple[float, str, str]:
    """Sort by the price of one accelerator, then by place."""
    cheapest = quote.spot_micros_per_hour or quote.on_demand_micros_per_hour or 0
    return cheapest / (quote.count or 1), quote.region or "", quote.zone or ""
