"""What a placement costs, as SkyPilot reckons: its cost report for what is paid, its catalog for on-demand prices.

SkyPilot prices a cluster with today's catalog, not with the price at its launch; the price is therefore read once,
when the placement is first seen, and recorded.
"""

from __future__ import annotations

import csv
import logging
import re
from pathlib import Path
from typing import Final

from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.rows import Cost, Row, read_costs
from holdfast.adapters.skypilot.story import Price
from holdfast.domain.candidates import PRICELESS

log = logging.getLogger(__name__)

MICROS: Final = 1_000_000
SHORTEST_S: Final = 20.0
"""A cost report rounds to seconds; over a shorter time its rate is too coarse."""
ABSURD_USD: Final = 1_000_000.0
"""An hour. What is dearer is a mistake of the report."""
DEAREST_USD: Final = 60.0
"""For one node an hour, where neither report nor catalog tells: above every node that is sold as spot."""

_TYPE: Final = re.compile(
    r"\b([a-z][a-z0-9-]*\.[0-9a-z-]+|[a-z]\d[a-z]?-[a-z0-9-]+|Standard_\w+)\b"
)


class Prices:
    """Prices of placements, each read once."""

    def __init__(self, door: Door, catalogs: Path | None) -> None:
        self._door = door
        self._catalogs = catalogs
        self._known: dict[tuple[str, int], Price] = {}

    async def of(self, cluster: str, job: Row | None, nodes: int, *, placements: int) -> Price:
        """The price of all nodes of placement number `placements` of a cluster.

        Raises:
            LauncherUnreachable: SkyPilot does not answer.
        """
        at = (cluster, placements)
        if known := self._known.get(at):
            return known
        on_demand, spot = self._catalog(job)
        paid = _rate(await self._report(cluster))
        if paid is None:
            each = spot if spot is not None else on_demand
            if each is None:
                each = DEAREST_USD
                log.warning(
                    "no price is known for %s; it is taken to be %.2f $/h a node", cluster, each
                )
            paid = each * nodes
        micros = round(paid * MICROS)
        # Without an on-demand price nothing is said to be saved.
        full = max(micros, round((on_demand or 0.0) * nodes * MICROS))
        # What was told once is recorded by whoever asked, and stays, also where it was but taken to be so.
        price = self._known[at] = Price(micros, full)
        return price

    def told(self, cluster: str) -> dict[int, Price]:
        """The prices that were told of a cluster, by the number of the placement."""
        return {number: price for (name, number), price in self._known.items() if name == cluster}

    async def _report(self, cluster: str) -> Cost | None:
        """The newest life of a cluster; None where SkyPilot knows of none."""
        wanted = {"days": 1, "cluster_names": [cluster]}
        costs = read_costs(await self._door.read("/cost_report", wanted))
        lives = (cost for cost in costs if cost.cluster == cluster)
        return max(lives, key=lambda cost: cost.launched_at, default=None)

    def _catalog(self, job: Row | None) -> tuple[float | None, float | None]:
        """On-demand and dearest spot price of one node an hour, in dollars; None where the catalog does not say."""
        if not self._catalogs or not job or not job.region or "/" not in job.region:
            return None, None
        cloud, _, region = job.region.partition("/")
        match = _TYPE.search(job.resources)
        file = self._catalogs / cloud / "vms.csv"
        if not match or not file.is_file():
            return None, None
        on_demand: list[float] = []
        spot: list[float] = []
        with file.open(newline="") as stream:
            for row in csv.DictReader(stream):
                if row.get("InstanceType") == match[1] and row.get("Region") == region:
                    on_demand += _number(row.get("Price"))
                    spot += _number(row.get("SpotPrice"))
        full = max(on_demand, default=None)
        # Catalogs list zones without a spot market at the on-demand price, or with none.
        real = [price for price in spot if full is None or price < full]
        return full, (max(real, default=None) if "[spot]" in job.resources.lower() else full)


def _rate(cost: Cost | None) -> float | None:
    """Dollars an hour for all nodes; None where nobody has said, or not for long enough."""
    if cost is None or cost.usd is None or not cost.lasted_s or cost.lasted_s < 0:
        return None
    if cost.usd == 0 and cost.cloud in PRICELESS:
        return 0.0
    hourly = cost.usd / cost.lasted_s * 3600
    # Of a cloud that sells nodes, 0 is no price: it is what SkyPilot says where it knows none.
    return hourly if cost.lasted_s >= SHORTEST_S and 0 < hourly <= ABSURD_USD else None


def _number(text: str | None) -> list[float]:
    try:
        value = float(text or "")
    except ValueError:
        return []
    return [value] if value > 0 else []
