"""The probable placement and price of a job before its launch, and the way to its store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.domain.charges.charges import placement_warning, store_place
from holdfast.domain.charges.resource_prices import ResourcePrices
from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.resource_options import uses_spot
from holdfast.domain.jobfile.spec import Engine, JobPart, JobSpec
from holdfast.domain.pricing.quotes import without_old
from holdfast.market.option_prices import option_location, option_quotes
from holdfast.ports import PriceCatalog

MAX_NOTES: Final = 3
"""Regions that are named. A lower value hides some; a higher value fills the answer for a job that may run anywhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesEstimate:
    """The cheapest known placement of nodes with the same resources."""

    name: str
    """Name of the node group; empty if the job has none."""
    nodes: int
    node: str | None
    """Instance type, else accelerators of a node; None if the file names neither."""
    place: str | None
    """Cloud and region; None if any is possible and no price is known."""
    is_pinned: bool
    """Whether the file names this place, or the place is merely the cheapest."""
    is_spot: bool
    micros_per_hour: int | None
    """Price of these nodes; None if no source has one."""
    is_old: bool = False
    """Whether the price is older than `MAX_QUOTE_AGE`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEstimate:
    """The cheapest known placement of a job."""

    nodes: int
    node: str | None
    """Instance type, else accelerators of a node; None if the file names neither, or node groups
    differ."""
    place: str | None
    """Cloud and region; None if any is possible and no price is known, or node groups differ."""
    is_pinned: bool
    """Whether the file names this place, or the place is merely the cheapest."""
    is_spot: bool
    """Whether any node is a spot node."""
    micros_per_hour: int | None
    """Price of all nodes; None if no source has one."""
    is_old: bool = False
    """Whether the price is older than `MAX_QUOTE_AGE`."""
    simulated: bool
    """Whether nothing is billed, as the nodes are not rented."""
    max_cost_usd: str | None
    groups: tuple[NodesEstimate, ...] = ()
    """The placement of each node group; empty if the job has none."""


def estimate_launch(spec: JobSpec, prices: PriceCatalog, now: datetime) -> LaunchEstimate:
    """Estimate where a job runs and what its nodes cost per hour.

    Blocking, as prices may be queried.
    """
    limit, is_rented = spec.holdfast.limits.max_cost_usd, spec.engine is Engine.SKYPILOT
    parts = [_estimate(part, prices if is_rented else None, now) for part in spec.parts]
    first, known = parts[0], [part.micros_per_hour for part in parts]
    costs = [micros for micros in known if micros is not None]
    return LaunchEstimate(
        nodes=spec.num_nodes,
        node=first.node if len({part.node for part in parts}) == 1 else None,
        place=first.place if len({part.place for part in parts}) == 1 else None,
        is_pinned=all(part.is_pinned for part in parts),
        is_spot=any(part.is_spot for part in parts),
        micros_per_hour=sum(costs) if len(costs) == len(parts) else None,
        is_old=any(part.is_old for part in parts),
        simulated=not is_rented,
        max_cost_usd=None if limit is None else str(limit),
        groups=tuple(parts) if spec.holdfast.groups else (),
    )


def distance_notes(
    spec: JobSpec,
    place: str,
    prices: ResourcePrices,
    estimate: LaunchEstimate | None = None,
) -> tuple[str, ...]:
    """What the distance to the store costs in each region that the job names or is expected in.

    `place` is where the store is, as it said. Empty where the region of the store or of the nodes is unknown.
    """
    if spec.engine is not Engine.SKYPILOT:
        return ()
    store = store_place(spec, prices, known=place)
    regions = dict.fromkeys(_regions(spec, estimate))
    notes = (placement_warning(store, region, 0, prices) for region in regions)
    return tuple(filter(None, notes))[:MAX_NOTES]


def _regions(spec: JobSpec, estimate: LaunchEstimate | None) -> Iterator[str]:
    """Regions that the job file names, and that of the cheapest known placement."""
    for part in spec.parts:
        for option in part.options:
            cloud, region = option_location(option)
            if cloud and region:
                yield f"{cloud}/{region}".lower()
    if estimate and estimate.place and not estimate.simulated:
        yield estimate.place.replace(" ", "/").lower()


def _estimate(part: JobPart, prices: PriceCatalog | None, now: datetime) -> NodesEstimate:
    """Estimate the placement of one part of a job; without prices if its nodes are not rented."""
    options, first = part.options, part.options[0]
    tried = options[:1] if part.resources.get("ordered") else options
    found = [
        (option, quote, micros)
        for option in tried
        if prices
        for quote, micros in option_quotes(option, prices, now, is_spot=uses_spot(option))
    ]
    if not found:
        accelerators = next(parse_accelerators(first.options.get("accelerators")), None)
        return NodesEstimate(
            name=part.name,
            nodes=part.num_nodes,
            node=first.options.get("instance_type") or (accelerators and _name(*accelerators)),
            place=_place(*option_location(first)) or None,
            is_pinned=True,
            is_spot=uses_spot(first),
            micros_per_hour=None,
        )
    current = set(without_old((quote for _, quote, _ in found), now))
    option, quote, micros = min((each for each in found if each[1] in current), key=lambda e: e[2])
    return NodesEstimate(
        name=part.name,
        nodes=part.num_nodes,
        node=quote.instance_type or (quote.accelerator and _name(quote.accelerator, quote.count)),
        place=_place(quote.cloud, quote.region),
        is_pinned=option_location(option)[1] is not None,
        is_spot=uses_spot(option),
        micros_per_hour=micros * part.num_nodes,
        is_old=quote.is_old(now),
    )


def _place(*parts: str | None) -> str:
    return " ".join(filter(None, parts))


def _name(accelerator: str, count: float) -> str:
    return f"{accelerator}:{count:g}"
