"""What a placement costs: SkyPilot's cost report where it tells, else the catalog of prices.

SkyPilot prices a cluster with today's catalog, not with the price at its launch; the price is therefore read once,
when the placement is first seen, and recorded with who told it and when.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final

from holdfast.domain.jobfile.accelerator_catalog import accelerators
from holdfast.domain.jobfile.resource_options import PRICELESS
from holdfast.domain.pricing.quotes import PriceQuery, Quote
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.models import ClusterCost, ManagedJob, read_costs
from holdfast.launchers.skypilot.observe import Price
from holdfast.ports import Clock, PriceCatalog

log = logging.getLogger(__name__)

MICROS: Final = 1_000_000
SHORTEST_S: Final = 20.0
"""A cost report rounds to seconds; over a shorter time its rate is too coarse."""
ABSURD_USD: Final = 1_000_000.0
"""An hour. What is dearer is a mistake of the report."""
REPORT: Final = "SkyPilot's cost report"

_TYPE: Final = re.compile(
    r"\b([a-z][a-z0-9-]*\.[0-9a-z-]+|[a-z]\d[a-z]?-[a-z0-9-]+|Standard_\w+)\b"
)
_GPUS: Final = re.compile(r"\bgpus=([\w. -]+:\d+(?:\.\d+)?)")


class Prices:
    """Prices of placements, each read once."""

    def __init__(self, door: SkyPilotClient, catalog: PriceCatalog, clock: Clock) -> None:
        self._door = door
        self._catalog = catalog
        self._clock = clock
        self._known: dict[tuple[str, int], Price] = {}

    async def of(
        self, cluster: str, job: ManagedJob | None, nodes: int, *, placements: int
    ) -> Price:
        """The price of all nodes of placement number `placements` of a cluster.

        Raises:
            LauncherUnreachable: SkyPilot does not answer.
        """
        at = (cluster, placements)
        if known := self._known.get(at):
            return known
        now = self._clock.now()
        life = await self._report(cluster)
        node = wanted(job, life)
        paid = _rate(life)
        quote = await asyncio.to_thread(self._catalog.quote, node, now)
        # Savings are computed from the on-demand price of this very node, never from an estimate; nor on demand itself.
        is_known = node.is_spot and (not quote.is_estimate or _is_of(quote, node))
        full = (quote.on_demand_micros_per_hour or 0) * nodes if is_known else 0
        if paid is not None:
            micros = round(paid * MICROS)
            price = Price(micros, max(micros, full), REPORT, now, node=node)
        else:
            each = quote.micros_per_hour(is_spot=node.is_spot)
            assert each is not None, "a catalog tells the price that is wanted"
            micros = each * nodes
            price = Price(
                micros,
                max(micros, full),
                quote.source,
                quote.as_of,
                is_estimate=quote.is_estimate,
                node=node,
            )
        if price.is_estimate:
            usd = micros / MICROS
            log.warning("the price of %s is taken to be %.2f $/h: %s", cluster, usd, price.source)
        # What was told once is recorded by whoever asked, and stays, also where it was but taken to be so.
        self._known[at] = price
        return price

    def told(self, cluster: str) -> dict[int, Price]:
        """The prices that were told of a cluster, by the number of the placement."""
        return {number: price for (name, number), price in self._known.items() if name == cluster}

    async def _report(self, cluster: str) -> ClusterCost | None:
        """The newest life of a cluster; None where SkyPilot knows of none."""
        asked = {"days": 1, "cluster_names": [cluster]}
        costs = read_costs(await self._door.read("/cost_report", asked))
        lives = (cost for cost in costs if cost.cluster == cluster)
        return max(lives, key=lambda cost: cost.launched_at, default=None)


def wanted(job: ManagedJob | None, life: ClusterCost | None = None) -> PriceQuery:
    """The node that SkyPilot says a job runs on, as far as it says.

    A listing forgets what a cluster was made of once it is gone; the cost report of that life does not.
    """
    if job is None:
        return PriceQuery()
    parts = [*(job.place or "").split("/"), "", ""]
    cloud, region, zone = (part or None for part in parts[:3])
    words = job.resources
    if life and not _TYPE.search(words) and _TYPE.search(life.resources):
        words = life.resources
        if life.region and life.region != region:
            cloud, region, zone = life.cloud, life.region, None
    kind, gpus = _TYPE.search(words), _GPUS.search(words)
    accelerator, count = next(accelerators(gpus[1]), (None, 0.0)) if gpus else (None, 0.0)
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
    """Whether a quote is of this instance type in this region, where on-demand nodes have one price."""
    is_named = node.instance_type is not None and node.region is not None
    return is_named and (quote.instance_type, quote.region) == (node.instance_type, node.region)


def _rate(cost: ClusterCost | None) -> float | None:
    """Dollars an hour for all nodes; None where nobody has said, or not for long enough."""
    if cost is None or cost.usd is None or not cost.lasted_s or cost.lasted_s < 0:
        return None
    if cost.usd == 0 and cost.cloud in PRICELESS:
        return 0.0
    hourly = cost.usd / cost.lasted_s * 3600
    # Of a cloud that sells nodes, 0 is no price: it is what SkyPilot says where it knows none.
    return hourly if cost.lasted_s >= SHORTEST_S and 0 < hourly <= ABSURD_USD else None
