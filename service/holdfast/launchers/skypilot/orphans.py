"""Finds and stops this service's jobs and clusters at SkyPilot without a live launch.

Clusters are listed separately, because they are billed whatever SkyPilot reports about their jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.cached_reads import Listing, QueueCache, SharedRead
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.models import ManagedJob, read_costs
from holdfast.launchers.skypilot.naming import JobNames, cluster_of, launch_key
from holdfast.ports import Clock, OrphanedResource

_EVER_DAYS: Final = 3650


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster."""

    name: str
    key: str
    """The launch, or the node group of one, that it belongs to."""

    @property
    def description(self) -> str:
        """Description used in all messages."""
        return f"SkyPilot cluster {self.name}"


class Clusters:
    """Lists and terminates this service's clusters."""

    def __init__(self, door: SkyPilotClient, names: JobNames) -> None:
        self._client = door
        self._names = names
        self._running = SharedRead(self._list_running)

    async def list_running(self) -> dict[str, Cluster]:
        """List this service's running clusters by name.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        return await self._running.get()

    async def _list_running(self) -> dict[str, Cluster]:
        # SkyPilot's report without names and days lists only current clusters.
        query = {"days": 0, "dashboard_summary_response": True}
        costs = read_costs(await self._client.read("/cost_report", query))
        found = [self._cluster(cost.cluster) for cost in costs if cost.is_running]
        return {cluster.name: cluster for cluster in found if cluster}

    async def is_known(self, name: str) -> bool:
        """Whether SkyPilot has a record of a cluster, running or terminated.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        query = {"days": _EVER_DAYS, "cluster_names": [name]}
        costs = read_costs(await self._client.read("/cost_report", query))
        return any(cost.cluster == name for cost in costs)

    async def terminate(self, cluster: Cluster) -> None:
        """Request the termination of a cluster.

        Raises:
            LauncherUnreachable: it is unknown whether SkyPilot received the request.
        """
        await self._client.submit("/down", {"cluster_name": cluster.name})

    def _cluster(self, name: str) -> Cluster | None:
        """Return the cluster of a name; None for another owner's cluster."""
        key = self._names.key_of_cluster(name)
        return Cluster(name, key) if key else None


log = logging.getLogger(__name__)

UNKNOWN_GRACE: Final = timedelta(seconds=120)
"""How long an unknown resource is left alone; another replica's row may not be visible yet."""
CLEANUP_GRACE: Final = timedelta(minutes=10)
"""How long SkyPilot may take to terminate the cluster of an ended job before Holdfast does."""
FORGOTTEN_AFTER: Final = timedelta(seconds=60)
"""Time between the first listing that lacks a known job and the one that makes it forgotten."""


async def cancel(door: SkyPilotClient, engine_id: int) -> None:
    """Request the end of a job by number, because names are not unique at SkyPilot.

    Raises:
        LauncherUnreachable: it is unknown whether SkyPilot received the request.
    """
    await door.submit("/jobs/cancel", {"job_ids": [engine_id]})


@dataclass(frozen=True, slots=True)
class _Finding:
    """A resource without a live launch."""

    key: str
    description: str
    grace: timedelta
    """How long it may remain before it is stopped."""
    stop: Callable[[], Awaitable[None]]


class OrphanFinder:
    """Finds and stops orphans."""

    def __init__(
        self,
        door: SkyPilotClient,
        listings: QueueCache,
        memory: LaunchStore,
        names: JobNames,
        clock: Clock,
    ) -> None:
        self._client = door
        self._listings = listings
        self._clusters = Clusters(door, names)
        self._store = memory
        self._names = names
        self._clock = clock
        self._first_seen: dict[str, datetime] = {}
        self._reported: dict[str, OrphanedResource] = {}
        """Reported orphans by description, so that later sweeps can report their end."""
        self.strangers: tuple[OrphanedResource, ...] | None = None
        """Resources of unknown launches, left alone by the latest sweep; None before the first."""

    async def leftovers(self, name: str, engine_id: int) -> tuple[str, ...]:
        """Describe what is left of an ended or lost job; empty if listings show nothing.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        listing = await self._listings.newest()
        others = [
            row
            for row in listing.jobs_named(name)
            if row.engine_id != engine_id and not row.status.is_terminal
        ]
        cluster = (await self._clusters.list_running()).get(cluster_of(name, engine_id))
        return (*map(_job_description, others), *([cluster.description] if cluster else []))

    async def is_known(self, cluster: str) -> bool:
        """Whether SkyPilot has a record of a cluster, running or terminated.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        return await self._clusters.is_known(cluster)

    async def clusters_of(self, key: str) -> tuple[str, ...]:
        """Describe the running clusters of a launch, whatever its job number.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        running = await self._clusters.list_running()
        return tuple(cluster.description for cluster in running.values() if cluster.key == key)

    async def sweep(self, is_live: Callable[[str], bool | None]) -> list[OrphanedResource]:
        """Stop resources without a live launch after their grace.

        Returns them and those that have ended since.

        Raises:
            LauncherUnreachable: SkyPilot's state is unknown.
        """
        listing = await self._listings.newest()
        running = await self._clusters.list_running()
        finds = [
            *self._orphaned_jobs(listing, is_live),
            *self._orphaned_clusters(listing, running),
        ]
        strangers = [find for find in finds if self._is_unknown(find.key, is_live)]
        ours = {find.description: find for find in finds if find not in strangers}
        now = self._clock.now()
        self._record_strangers(strangers, now)
        self._first_seen = {what: self._first_seen.get(what, now) for what in ours}
        reported: list[OrphanedResource] = []
        for what, find in ours.items():
            since = self._first_seen[what]
            if now - since >= find.grace:
                await find.stop()
                reported.append(
                    OrphanedResource(
                        key=launch_key(find.key), description=what, since=since, stopped=False
                    )
                )
        # A resource that has an owner again, by a listing that may be outdated, has not ended.
        at_work = (row for row in listing.rows if not row.status.is_terminal)
        there = {
            *map(_job_description, at_work),
            *(cluster.description for cluster in running.values()),
        }
        gone = [self._reported.pop(what) for what in [*self._reported] if what not in there]
        self._reported |= {orphan.description: orphan for orphan in reported}
        return [*reported, *(replace(orphan, stopped=True) for orphan in gone)]

    def _orphaned_jobs(
        self, listing: Listing, is_live: Callable[[str], bool | None]
    ) -> Iterator[_Finding]:
        for row, key in self._ours(listing):
            is_duplicate = self._is_duplicate(row, key)
            if row.status.is_terminal or (is_live(key) and not is_duplicate):
                continue
            # A duplicate is recognized at once, because its launch is known under another number.
            patience = timedelta(0) if is_duplicate else UNKNOWN_GRACE
            yield _Finding(
                key, _job_description(row), patience, partial(cancel, self._client, row.engine_id)
            )

    def _orphaned_clusters(
        self, listing: Listing, running: Mapping[str, Cluster]
    ) -> Iterator[_Finding]:
        """Yield clusters whose jobs have ended or are missing.

        SkyPilot can lose its jobs but keep their clusters.
        """
        at_work = {
            cluster_of(row.name, row.engine_id)
            for row, _ in self._ours(listing)
            if not row.status.is_terminal
        }
        for cluster in running.values():
            if cluster.name not in at_work:
                patience = timedelta(0) if self._is_forgotten(cluster.key) else CLEANUP_GRACE
                stop = partial(self._clusters.terminate, cluster)
                yield _Finding(cluster.key, cluster.description, patience, stop)

    def _is_unknown(self, key: str, is_live: Callable[[str], bool | None]) -> bool:
        """Whether the database knows neither the launch nor a request to cancel it."""
        return is_live(key) is None and self._store.find(key) is None

    def _record_strangers(self, strangers: Sequence[_Finding], now: datetime) -> None:
        since = {orphan.description: orphan.since for orphan in self.strangers or ()}
        for find in strangers:
            if find.description not in since:
                log.warning(
                    "%s belongs to a launch missing from the database; leaving it alone",
                    find.description,
                )
        self.strangers = tuple(
            OrphanedResource(
                key=launch_key(find.key),
                description=find.description,
                since=since.get(find.description, now),
                stopped=False,
            )
            for find in strangers
        )

    def _ours(self, listing: Listing) -> Iterator[tuple[ManagedJob, str]]:
        for row in listing.rows:
            if key := self._names.key(row.name):
                yield row, key

    def _is_duplicate(self, row: ManagedJob, key: str) -> bool:
        known = self._store.find(key)
        return bool(known and known.engine_id not in {None, row.engine_id})

    def _is_forgotten(self, key: str) -> bool:
        """Whether a launch's job is missing for so long that only this sweep removes its cluster."""
        known = self._store.find(key)
        since = known.missing_since if known else None
        return since is not None and self._clock.now() - since >= FORGOTTEN_AFTER


def _job_description(row: ManagedJob) -> str:
    return f"SkyPilot managed job {row.engine_id} ({row.name})"
