"""The probable placement and price of a job, before its launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.resource_options import ResourceOption, resource_options, uses_spot
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.pricing.quotes import PriceQuery, Quote, without_old
from holdfast.ports import PriceCatalog


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEstimate:
    """The cheapest known placement of a job."""

    nodes: int
    node: str | None
    """Instance type, else accelerators of a node; None if the file names neither."""
    place: str | None
    """Cloud and region; None if any is possible and no price is known."""
    is_pinned: bool
    """Whether the file names this place, or the place is merely the cheapest."""
    is_spot: bool
    micros_per_hour: int | None
    """Price of all nodes; None if no source has one."""
    is_old: bool = False
    """Whether the price is older than `MAX_QUOTE_AGE`."""
    simulated: bool
    """Whether nothing is billed, as the nodes are not rented."""
    max_cost_usd: str | None


def estimate_launch(spec: JobSpec, prices: PriceCatalog, now: datetime) -> LaunchEstimate:
    """Estimate where a job runs and what its nodes cost per hour.

    Blocking, as prices may be queried.
    """
    options = resource_options(spec.resources)
    first, limit = options[0], spec.holdfast.limits.max_cost_usd
    max_cost_usd = None if limit is None else str(limit)
    is_rented = spec.engine is Engine.SKYPILOT
    tried = options[:1] if spec.resources.get("ordered") else options
    found = list(_quotes(tried, prices, now)) if is_rented else []
    if not found:
        accelerators = next(parse_accelerators(first.options.get("accelerators")), None)
        return LaunchEstimate(
            nodes=spec.num_nodes,
            node=first.options.get("instance_type") or (accelerators and _name(*accelerators)),
            place=_place(*_location(first)) or None,
            is_pinned=True,
            is_spot=uses_spot(first),
            micros_per_hour=None,
            simulated=not is_rented,
            max_cost_usd=max_cost_usd,
        )
    current = set(without_old((quote for _, quote, _ in found), now))
    option, quote, micros = min((each for each in found if each[1] in current), key=lambda e: e[2])
    return LaunchEstimate(
        nodes=spec.num_nodes,
        node=quote.instance_type or (quote.accelerator and _name(quote.accelerator, quote.count)),
        place=_place(quote.cloud, quote.region),
        is_pinned=_location(option)[1] is not None,
        is_spot=uses_spot(option),
        micros_per_hour=micros * spec.num_nodes,
        is_old=quote.is_old(now),
        simulated=False,
        max_cost_usd=max_cost_usd,
    )


def _quotes(
    options: tuple[ResourceOption, ...], prices: PriceCatalog, now: datetime
) -> Iterator[tuple[ResourceOption, Quote, int]]:
    """Yield the known prices of one node.

    None for nodes that the file describes by other properties.
    """
    for option in options:
        cloud, region = _location(option)
        kind, is_spot = option.options.get("instance_type"), uses_spot(option)
        accelerators: list[tuple[str | None, float]]
        accelerators = [*parse_accelerators(option.options.get("accelerators"))]
        if kind and not accelerators:
            accelerators = [(None, 0.0)]
        for accelerator, count in accelerators:
            query = PriceQuery(
                cloud=cloud,
                region=region,
                instance_type=kind,
                accelerator=accelerator,
                count=count,
                is_spot=is_spot,
            )
            for quote in prices.find(query, now).quotes:
                micros = quote.micros_per_hour(is_spot=is_spot)
                if micros is not None:
                    yield option, quote, micros


def _location(option: ResourceOption) -> tuple[str | None, str | None]:
    """Return the cloud and the region that an option names."""
    _, region, *_ = (*str(option.options.get("infra") or "").strip("/").split("/"), "", "")
    return option.cloud, None if region in {"", "*"} else region


def _place(*parts: str | None) -> str:
    return " ".join(filter(None, parts))


def _name(accelerator: str, count: float) -> str:
    return f"{accelerator}:{count:g}"
