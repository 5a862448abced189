"""What runs at SkyPilot without belonging to a live launch: found in its listings, and stopped by number."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.listing import Listing, Listings
from holdfast.adapters.skypilot.memory import Memory
from holdfast.adapters.skypilot.naming import Names, cluster_of
from holdfast.adapters.skypilot.rows import Row
from holdfast.errors import LauncherUnreachable
from holdfast.ports import Clock, Stray

YOUNG: Final = timedelta(seconds=120)
"""How long something may be unknown here before it is stopped: its row may be on the way from another replica."""
TEARDOWN: Final = timedelta(minutes=10)
"""How long SkyPilot may take over removing the cluster of a job that is over."""


async def cancel(door: Door, engine_id: int) -> None:
    """Ask for the end of one job, by its number: names are not unique at SkyPilot.

    Raises:
        LauncherUnreachable: nobody knows whether it has heard.
    """
    await door.ask("/jobs/cancel", {"job_ids": [engine_id]})


class Strays:
    """The eyes for them."""

    def __init__(
        self, door: Door, listings: Listings, memory: Memory, names: Names, clock: Clock
    ) -> None:
        self._door = door
        self._listings = listings
        self._memory = memory
        self._names = names
        self._clock = clock
        self._first_seen: dict[str, datetime] = {}
        self._told: list[Stray] = []
        """What the last sweep told of, and the next may find gone."""

    async def of(self, name: str, engine_id: int) -> str:
        """What is left beside a job that is over, in words; empty when listings show nothing.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        listing = await self._listings.newest()
        others = [
            row
            for row in listing.named(name)
            if row.engine_id != engine_id and not row.status.is_over
        ]
        clusters = await self._clusters([cluster_of(name, engine_id)])
        return ", ".join([*map(_job, others), *map(_cluster, clusters)])

    async def sweep(self, is_live: Callable[[str], bool]) -> list[Stray]:
        """What no live launch owns; what has been so for a while is stopped.

        Raises:
            LauncherUnreachable: nothing was found out.
        """
        listing = await self._listings.newest()
        seen: set[str] = set()
        found = [
            *[stray async for stray in self._jobs(listing, is_live, seen)],
            *[stray async for stray in self._remains(listing, seen)],
        ]
        gone = [replace(stray, stopped=True) for stray in self._told if stray.what not in seen]
        self._told = found
        self._first_seen = {k: v for k, v in self._first_seen.items() if k in seen}
        return [*found, *gone]

    async def _jobs(
        self, listing: Listing, is_live: Callable[[str], bool], seen: set[str]
    ) -> AsyncIterator[Stray]:
        for row, key in self._ours(listing):
            if row.status.is_over or (is_live(key) and not self._is_duplicate(row, key)):
                continue
            what = _job(row)
            seen.add(what)
            since, is_old = self._age(what, YOUNG)
            # A duplicate is known for one at once: its launch is known under another number.
            if is_old or self._is_duplicate(row, key):
                await cancel(self._door, row.engine_id)
            yield Stray(key=key, what=what, since=since, stopped=False)

    async def _remains(self, listing: Listing, seen: set[str]) -> AsyncIterator[Stray]:
        over = {
            cluster_of(row.name, row.engine_id): key
            for row, key in self._ours(listing)
            if row.status.is_over
        }
        if not over:
            return
        for cluster in await self._clusters(list(over)):
            what = _cluster(cluster)
            seen.add(what)
            since, is_old = self._age(what, TEARDOWN)
            if is_old:
                await self._door.ask("/down", {"cluster_name": cluster})
                yield Stray(key=over[cluster], what=what, since=since, stopped=False)

    def _ours(self, listing: Listing) -> Iterator[tuple[Row, str]]:
        for row in listing.rows:
            if key := self._names.key(row.name):
                yield row, key

    def _is_duplicate(self, row: Row, key: str) -> bool:
        known = self._memory.find(key)
        return bool(known and known.engine_id not in {None, row.engine_id})

    def _age(self, what: str, limit: timedelta) -> tuple[datetime, bool]:
        now = self._clock.now()
        since = self._first_seen.setdefault(what, now)
        return since, now - since >= limit

    async def _clusters(self, names: list[str]) -> list[str]:
        """Those of these clusters that still exist."""
        told = await self._door.read("/cost_report", {"days": 1, "cluster_names": names})
        if not isinstance(told, list):
            raise LauncherUnreachable("SkyPilot reports costs in a way that is not known here")
        rows = [item for item in told if isinstance(item, dict) and item.get("status")]
        standing = [str(row.get("name")) for row in rows]
        return [name for name in names if name in standing]


def _job(row: Row) -> str:
    return f"SkyPilot managed job {row.engine_id} ({row.name})"


def _cluster(name: str) -> str:
    return f"SkyPilot cluster {name}"
