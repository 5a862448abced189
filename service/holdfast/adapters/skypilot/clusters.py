"""The clusters that stand at SkyPilot under this service's names: what is paid for, whatever its jobs are said to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.naming import Names
from holdfast.adapters.skypilot.rows import read_costs

_EVER_DAYS: Final = 3650


@dataclass(frozen=True, slots=True)
class Cluster:
    """One that stands."""

    name: str
    key: str
    """The launch that it belongs to."""

    @property
    def told(self) -> str:
        """What it is, in the words in which it is always told."""
        return f"SkyPilot cluster {self.name}"


class Clusters:
    """The eyes and the hand for them."""

    def __init__(self, door: Door, names: Names) -> None:
        self._door = door
        self._names = names

    async def standing(self) -> dict[str, Cluster]:
        """All of ours, by name. Without names and days, SkyPilot's report has what stands now, however much went before.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        wanted = {"days": 0, "dashboard_summary_response": True}
        costs = read_costs(await self._door.read("/cost_report", wanted))
        found = [self._cluster(cost.cluster) for cost in costs if cost.stands]
        return {cluster.name: cluster for cluster in found if cluster}

    async def is_known(self, name: str) -> bool:
        """Whether SkyPilot has a record of a cluster, be it gone or not.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        wanted = {"days": _EVER_DAYS, "cluster_names": [name]}
        costs = read_costs(await self._door.read("/cost_report", wanted))
        return any(cost.cluster == name for cost in costs)

    async def take_down(self, cluster: Cluster) -> None:
        """Ask for the end of one.

        Raises:
            LauncherUnreachable: nobody knows whether SkyPilot has heard.
        """
        await self._door.ask("/down", {"cluster_name": cluster.name})

    def _cluster(self, name: str) -> Cluster | None:
        """One of ours; None for one of somebody else."""
        key = self._names.key_of_cluster(name)
        return Cluster(name, key) if key else None
