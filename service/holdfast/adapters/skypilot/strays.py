"""What runs at SkyPilot without belonging to a live launch: found in its listings, and stopped by number."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from holdfast.adapters.skypilot.clusters import Cluster, Clusters
from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.listing import Listing, Listings
from holdfast.adapters.skypilot.memory import Memory
from holdfast.adapters.skypilot.naming import Names, cluster_of
from holdfast.adapters.skypilot.rows import Row
from holdfast.ports import Clock, Stray

log = logging.getLogger(__name__)

YOUNG: Final = timedelta(seconds=120)
"""How long something may be unknown here before it is stopped: its row may be on the way from another replica."""
LEFT_ALONE: Final = timedelta(minutes=10)
"""How long SkyPilot may take over removing the cluster of a job that is over, before it is taken down from here."""
FORGOTTEN_AFTER: Final = timedelta(seconds=60)
"""Between the first listing that lacks a known job and the one that makes it forgotten."""


async def cancel(door: Door, engine_id: int) -> None:
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


class Strays:
    """The eyes for them."""

    def __init__(
        self, door: Door, listings: Listings, memory: Memory, names: Names, clock: Clock
    ) -> None:
        self._door = door
        self._listings = listings
        self._clusters = Clusters(door, names)
        self._memory = memory
        self._names = names
        self._clock = clock
        self._first_seen: dict[str, datetime] = {}
        self._told: dict[str, Stray] = {}
        """What sweeps have told of, and the next may find gone, by what it is."""
        self.strangers: tuple[Stray, ...] | None = None
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
        cluster = (await self._clusters.standing()).get(cluster_of(name, engine_id))
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
        standing = await self._clusters.standing()
        return tuple(cluster.told for cluster in standing.values() if cluster.key == key)

    async def sweep(self, is_live: Callable[[str], bool | None]) -> list[Stray]:
        """What no live launch owns for longer than may be, stopped; and what is gone of that since the last sweep.

        Raises:
            LauncherUnreachable: nothing was found out.
        """
        listing = await self._listings.newest()
        standing = await self._clusters.standing()
        finds = [*self._jobs(listing, is_live), *self._remains(listing, standing)]
        strangers = [find for find in finds if self._is_strange(find.key, is_live)]
        ours = {find.what: find for find in finds if find not in strangers}
        now = self._clock.now()
        self._leave_alone(strangers, now)
        self._first_seen = {what: self._first_seen.get(what, now) for what in ours}
        told: list[Stray] = []
        for what, find in ours.items():
            since = self._first_seen[what]
            if now - since >= find.patience:
                await find.stop()
                told.append(Stray(key=find.key, what=what, since=since, stopped=False))
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
                stop = partial(self._clusters.take_down, cluster)
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
            Stray(key=find.key, what=find.what, since=since.get(find.what, now), stopped=False)
            for find in strangers
        )

    def _ours(self, listing: Listing) -> Iterator[tuple[Row, str]]:
        for row in listing.rows:
            if key := self._names.key(row.name):
                yield row, key

    def _is_duplicate(self, row: Row, key: str) -> bool:
        known = self._memory.find(key)
        return bool(known and known.engine_id not in {None, row.engine_id})

    def _is_forgotten(self, key: str) -> bool:
        """Whether listings have lacked the job of a launch for so long that nobody else will look after its cluster."""
        known = self._memory.find(key)
        since = known.missing_since if known else None
        return since is not None and self._clock.now() - since >= FORGOTTEN_AFTER


def _job(row: Row) -> str:
    return f"SkyPilot managed job {row.engine_id} ({row.name})"
