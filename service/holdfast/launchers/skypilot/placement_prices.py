"""Price of a placement, from SkyPilot's cost report or else from the price catalog.

SkyPilot prices a cluster with today's catalog and not with the price at launch. The price is therefore read once, when
the placement is first observed, and recorded with its source and time.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final

from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.resource_options import CLOUDS_WITHOUT_PRICES
from holdfast.domain.pricing.quotes import PriceQuery, Quote
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.models import ClusterCost, ManagedJob, read_costs
from holdfast.launchers.skypilot.observe import PlacementPrice
from holdfast.ports import Clock, PriceCatalog

log = logging.getLogger(__name__)

MICROS: Final = 1_000_000
MIN_DURATION_S: Final = 20.0
"""Minimum lifetime in seconds.
Cost reports are rounded to seconds, so that shorter ones give an inaccurate rate."""
MAX_HOURLY_USD: Final = 1_000_000.0
"""Maximum plausible price per hour. Higher ones are errors of the report."""
COST_REPORT: Final = "SkyPilot's cost report"

_TYPE: Final = re.compile(
    r"\b([a-z][a-z0-9-]*\.[0-9a-z-]+|[a-z]\d[a-z]?-[a-z0-9-]+|Standard_\w+)\b"
)
_GPUS: Final = re.compile(r"\bgpus=([\w. -]+:\d+(?:\.\d+)?)")


class PlacementPrices:
    """Prices of placements, each read once."""

    def __init__(self, door: SkyPilotClient, catalog: PriceCatalog, clock: Clock) -> None:
        self._client = door
        self._catalog = catalog
        self._clock = clock
        self._cached: dict[tuple[str, int], PlacementPrice] = {}

    async def get(
        self, cluster: str, job: ManagedJob | None, nodes: int, *, placements: int
    ) -> PlacementPrice:
        """Return the price of all nodes of a cluster's placement number `placements`.

        Raises:
            LauncherUnreachable: SkyPilot did not respond.
        """
        at = (cluster, placements)
        if known := self._cached.get(at):
            return known
        now = self._clock.now()
        life = await self._newest_cost(cluster)
        node = price_query(job, life)
        paid = _hourly_usd(life)
        quote = await asyncio.to_thread(self._catalog.quote, node, now)
        # Savings require the on-demand price of this instance type, not an estimate; on-demand nodes have no savings.
        is_known = node.is_spot and (not quote.is_estimate or _is_of(quote, node))
        full = (quote.on_demand_micros_per_hour or 0) * nodes if is_known else 0
        if paid is not None:
            micros = round(paid * MICROS)
            price = PlacementPrice(micros, max(micros, full), COST_REPORT, now, node=node)
        else:
            each = quote.micros_per_hour(is_spot=node.is_spot)
            assert each is not None, "a catalog quotes the requested price"
            micros = each * nodes
            price = PlacementPrice(
                micros,
                max(micros, full),
                quote.source,
                quote.as_of,
                is_estimate=quote.is_estimate,
                node=node,
            )
        if price.is_estimate:
            usd = micros / MICROS
            log.warning("assuming for %s a price of %.2f $/h: %s", cluster, usd, price.source)
        # A price returned once is recorded by the caller and kept, including an assumed one.
        self._cached[at] = price
        return price

    def cached(self, cluster: str) -> dict[int, PlacementPrice]:
        """Return the cached prices of a cluster, by placement number."""
        return {number: price for (name, number), price in self._cached.items() if name == cluster}

    async def _newest_cost(self, cluster: str) -> ClusterCost | None:
        """Return the newest lifetime of a cluster; None if SkyPilot has no record."""
        asked = {"days": 1, "cluster_names": [cluster]}
        costs = read_costs(await self._client.read("/cost_report", asked))
        lives = (cost for cost in costs if cost.cluster == cluster)
        return max(lives, key=lambda cost: cost.launched_at, default=None)


def price_query(job: ManagedJob | None, life: ClusterCost | None = None) -> PriceQuery:
    """Return the properties of a job's nodes as far as SkyPilot reports them.

    A listing loses a cluster's resources after its termination; the cost report of that lifetime keeps them.
    """
    if job is None:
        return PriceQuery()
    parts = [*(job.location or "").split("/"), "", ""]
    cloud, region, zone = (part or None for part in parts[:3])
    words = job.resources
    if life and not _TYPE.search(words) and _TYPE.search(life.resources):
        words = life.resources
        if life.region and life.region != region:
            cloud, region, zone = life.cloud, life.region, None
    kind, gpus = _TYPE.search(words), _GPUS.search(words)
    accelerator, count = next(parse_accelerators(gpus[1]), (None, 0.0)) if gpus else (None, 0.0)
    return PriceQuery(
        cloud=cloud,
        region=region,
        zone=zone,
        instance_type=kind[1] if kind else None,
        accelerator=accelerator,
        count=count,
        is_spot="[spot]" in words.lower(),
    )


def _is_of(quote: Quote, node: PriceQuery) -> bool:
    """Whether a quote has this instance type and region, in which on-demand prices are equal."""
    is_named = node.instance_type is not None and node.region is not None
    return is_named and (quote.instance_type, quote.region) == (node.instance_type, node.region)


def _hourly_usd(cost: ClusterCost | None) -> float | None:
    """Return dollars per hour for all nodes; None without a report of a sufficient lifetime."""
    if cost is None or cost.usd is None or not cost.duration_s or cost.duration_s < 0:
        return None
    if cost.usd == 0 and cost.cloud in CLOUDS_WITHOUT_PRICES:
        return 0.0
    hourly = cost.usd / cost.duration_s * 3600
    # For commercial clouds, SkyPilot reports 0 if it does not know the price.
    return hourly if cost.duration_s >= MIN_DURATION_S and 0 < hourly <= MAX_HOURLY_USD else None
