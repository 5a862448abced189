"""What a placement costs, as SkyPilot reckons: its cost report for what is paid, its catalog for on-demand prices.

SkyPilot prices a cluster with today's catalog, not with the price at its launch; the price is therefore read once,
when the placement is first seen, and recorded.
"""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.rows import Row
from holdfast.adapters.skypilot.story import Price
from holdfast.errors import LauncherUnreachable

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
        report = await self._report(cluster)
        paid, is_sure = _rate(report)
        if not is_sure:
            paid = spot if spot is not None else on_demand
        if paid is None:
            log.warning(
                "no price is known for %s; it is taken to be %.2f $/h a node", cluster, DEAREST_USD
            )
            paid = DEAREST_USD
        per_node = paid if not is_sure else paid / max(1, nodes)
        micros = round(per_node * nodes * MICROS)
        # Without an on-demand price nothing is said to be saved.
        full = max(micros, round((on_demand or 0.0) * nodes * MICROS))
        # What was told once is recorded by whoever asked, and stays, also where it was but taken to be so.
        price = self._known[at] = Price(micros, full)
        return price

    def told(self, cluster: str) -> dict[int, Price]:
        """The prices that were told of a cluster, by the number of the placement."""
        return {number: price for (name, number), price in self._known.items() if name == cluster}

    async def _report(self, cluster: str) -> Mapping[str, Any]:
        told = await self._door.read("/cost_report", {"days": 1, "cluster_names": [cluster]})
        if not isinstance(told, list):
            raise LauncherUnreachable("SkyPilot reports costs in a way that is not known here")
        rows = [row for row in told if isinstance(row, dict) and row.get("name") == cluster]
        return max(rows, key=_launched_at, default={})

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


def _rate(report: Mapping[str, Any]) -> tuple[float | None, bool]:
    """Dollars an hour for all nodes, and whether the report has been running long enough to tell."""
    cost, seconds = report.get("total_cost"), report.get("duration")
    if not isinstance(cost, int | float) or not isinstance(seconds, int | float):
        return None, False
    # Not a number is neither more nor less than anything.
    if not (cost > 0 and seconds >= SHORTEST_S and cost / seconds * 3600 <= ABSURD_USD):
        return None, False
    return cost / seconds * 3600, True


def _launched_at(report: Mapping[str, Any]) -> float:
    at = report.get("launched_at")
    return float(at) if isinstance(at, int | float) else 0.0


def _number(text: str | None) -> list[float]:
    try:
        value = float(text or "")
    except ValueError:
        return []
    return [value] if value > 0 else []
