"""The clusters that stand at SkyPilot under this service's names: what is paid for, whatever its jobs are said to be.

What runs at SkyPilot without belonging to a live launch: found in its listings, and stopped by number.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.cached_reads import Listing, QueueCache
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.models import ManagedJob, read_costs
from holdfast.launchers.skypilot.naming import Names, cluster_of
from holdfast.ports import Clock, OrphanedResource

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

    def __init__(self, door: SkyPilotClient, names: Names) -> None:
        self._door = door
        self._names = names

    async def list_running(self) -> dict[str, Cluster]:
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

    async def terminate(self, cluster: Cluster) -> None:
        """Ask for the end of one.

        Raises:
            LauncherUnreachable: nobody knows whether SkyPilot has heard.
        """
        await self._door.ask("/down", {"cluster_name": cluster.name})

    def _cluster(self, name: str) -> Cluster | None:
        """One of ours; None for one of somebody else."""
        key = self._names.key_of_cluster(name)
        return Cluster(name, key) if key else None


log = logging.getLogger(__name__)

YOUNG: Final = timedelta(seconds=120)
"""How long something may be unknown here before it is stopped: its row may be on the way from another replica."""
LEFT_ALONE: Final = timedelta(minutes=10)
"""How long SkyPilot may take over removing the cluster of a job that is over, before it is taken down from here."""
FORGOTTEN_AFTER: Final = timedelta(seconds=60)
"""Between the first listing that lacks a known job and the one that makes it forgotten."""


async def cancel(door: SkyPilotClient, engine_id: int) -> None:
    """Ask for the end of one job, by its number: names are not unique at SkyPilot.

    Raises:
        LauncherUnreachable: nobody knows whether it has heard.
    """
    await door.ask("/jobs/cancel", {"job_ids": [engine_id]})


@dataclass(frozen=True, slots=True)
class _Find:
    """Something that no live launch owns."""

    key: str
    what: str
    patience: timedelta
    """For how long that may be so."""
    stop: Callable[[], Awaitable[None]]


class OrphanFinder:
    """The eyes for them."""

    def __init__(
        self,
        door: SkyPilotClient,
        listings: QueueCache,
        memory: LaunchStore,
        names: Names,
        clock: Clock,
    ) -> None:
        self._door = door
        self._listings = listings
        self._clusters = Clusters(door, names)
        self._memory = memory
        self._names = names
        self._clock = clock
        self._first_seen: dict[str, datetime] = {}
        self._told: dict[str, OrphanedResource] = {}
        """What sweeps have told of, and the next may find gone, by what it is."""
        self.strangers: tuple[OrphanedResource, ...] | None = None
        """What the newest sweep left alone, because the database does not know its launch; None before the first."""

    async def of(self, name: str, engine_id: int) -> tuple[str, ...]:
        """What is left beside a job that is over or gone, in words; empty when listings show nothing.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        listing = await self._listings.newest()
        others = [
            row
            for row in listing.named(name)
            if row.engine_id != engine_id and not row.status.is_over
        ]
        cluster = (await self._clusters.list_running()).get(cluster_of(name, engine_id))
        return (*map(_job, others), *([cluster.told] if cluster else []))

    async def knows(self, cluster: str) -> bool:
        """Whether SkyPilot has a record of a cluster, be it gone or not.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        return await self._clusters.is_known(cluster)

    async def clusters_of(self, key: str) -> tuple[str, ...]:
        """What stands of a launch, whatever the number of its job was.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        standing = await self._clusters.list_running()
        return tuple(cluster.told for cluster in standing.values() if cluster.key == key)

    async def sweep(self, is_live: Callable[[str], bool | None]) -> list[OrphanedResource]:
        """What no live launch owns for longer than may be, stopped; and what is gone of that since the last sweep.

        Raises:
            LauncherUnreachable: nothing was found out.
        """
        listing = await self._listings.newest()
        standing = await self._clusters.list_running()
        finds = [*self._jobs(listing, is_live), *self._remains(listing, standing)]
        strangers = [find for find in finds if self._is_strange(find.key, is_live)]
        ours = {find.what: find for find in finds if find not in strangers}
        now = self._clock.now()
        self._leave_alone(strangers, now)
        self._first_seen = {what: self._first_seen.get(what, now) for what in ours}
        told: list[OrphanedResource] = []
        for what, find in ours.items():
            since = self._first_seen[what]
            if now - since >= find.patience:
                await find.stop()
                told.append(OrphanedResource(key=find.key, what=what, since=since, stopped=False))
        # What has somebody to look after it again, by a listing that may be old, is not gone.
        at_work = (row for row in listing.rows if not row.status.is_over)
        there = {*map(_job, at_work), *(cluster.told for cluster in standing.values())}
        gone = [self._told.pop(what) for what in [*self._told] if what not in there]
        self._told |= {stray.what: stray for stray in told}
        return [*told, *(replace(stray, stopped=True) for stray in gone)]

    def _jobs(self, listing: Listing, is_live: Callable[[str], bool | None]) -> Iterator[_Find]:
        for row, key in self._ours(listing):
            is_duplicate = self._is_duplicate(row, key)
            if row.status.is_over or (is_live(key) and not is_duplicate):
                continue
            # A duplicate is known for one at once: its launch is known under another number.
            patience = timedelta(0) if is_duplicate else YOUNG
            yield _Find(key, _job(row), patience, partial(cancel, self._door, row.engine_id))

    def _remains(self, listing: Listing, standing: Mapping[str, Cluster]) -> Iterator[_Find]:
        """Clusters whose jobs are over, or in no listing: SkyPilot can lose its jobs, and keep what they run on."""
        at_work = {
            cluster_of(row.name, row.engine_id)
            for row, _ in self._ours(listing)
            if not row.status.is_over
        }
        for cluster in standing.values():
            if cluster.name not in at_work:
                patience = timedelta(0) if self._is_forgotten(cluster.key) else LEFT_ALONE
                stop = partial(self._clusters.terminate, cluster)
                yield _Find(cluster.key, cluster.told, patience, stop)

    def _is_strange(self, key: str, is_live: Callable[[str], bool | None]) -> bool:
        """Whether the database knows neither the launch nor a request to cancel it."""
        return is_live(key) is None and self._memory.find(key) is None

    def _leave_alone(self, strangers: Sequence[_Find], now: datetime) -> None:
        since = {stray.what: stray.since for stray in self.strangers or ()}
        for find in strangers:
            if find.what not in since:
                log.warning("%s is not in the database and is left alone", find.what)
        self.strangers = tuple(
            OrphanedResource(
                key=find.key, what=find.what, since=since.get(find.what, now), stopped=False
            )
            for find in strangers
        )

    def _ours(self, listing: Listing) -> Iterator[tuple[ManagedJob, str]]:
        for row in listing.rows:
            if key := self._names.key(row.name):
                yield row, key

    def _is_duplicate(self, row: ManagedJob, key: str) -> bool:
        known = self._memory.find(key)
        return bool(known and known.engine_id not in {None, row.engine_id})

    def _is_forgotten(self, key: str) -> bool:
        """Whether listings have lacked the job of a launch for so long that nobody else will look after its cluster."""
        known = self._memory.find(key)
        since = known.missing_since if known else None
        return since is not None and self._clock.now() - since >= FORGOTTEN_AFTER


def _job(row: ManagedJob) -> str:
    return f"SkyPilot managed job {row.engine_id} ({row.name})"
