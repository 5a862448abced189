"""Notes about a checkpoint store in another region than the nodes of a job, before its launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.domain.charges.charges import placement_warning, store_place
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.market.option_prices import option_location
from holdfast.services import Services
from holdfast.submission.launch_estimate import LaunchEstimate

MAX_NOTES: Final = 3
"""Regions that are named. A lower value hides some; a higher value fills the answer for a job that may run anywhere."""


def distance_notes(
    services: Services, spec: JobSpec, estimate: LaunchEstimate | None = None
) -> tuple[str, ...]:
    """What the distance to the store costs in each region that the job file names, or that is estimated.

    Empty where the region of the store or of the nodes is unknown.
    """
    checkpoint = spec.holdfast.checkpoint
    if spec.engine is not Engine.SKYPILOT or checkpoint is None:
        return ()
    prices = services.resource_prices
    store = store_place(spec, services.retention_queue.place_of(checkpoint.store), prices)
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
