"""The history of launches: read from SkyPilot by the page, and remembered, as SkyPilot forgets it after thirty days.

The queue of SkyPilot, listed once for all jobs: each listing costs its server seconds, however many jobs there are.

A listing has the jobs that are not over, so that it does not grow with all that ever ran. A job that is over is asked for
by its number or its name.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.models import FIELDS, ManagedJob, read_events, read_listing
from holdfast.launchers.skypilot.naming import Names
from holdfast.launchers.skypilot.responses import Unanswered
from holdfast.ports import Clock

PAGE: Final = 100
"""Events in one reading. With fewer, more happens between two looks than a page holds, and all are read; with more,
each look costs SkyPilot more."""


class EventCache:
    """The histories of all launches."""

    def __init__(self, door: SkyPilotClient, memory: LaunchStore) -> None:
        self._door = door
        self._memory = memory

    async def read(self, key: str, engine_id: int) -> tuple[EngineEvent, ...]:
        """The history of a launch up to now, oldest first; what is new in it is remembered.

        Raises:
            LauncherUnreachable: it could not be read.
        """
        known = self._memory.told(key)
        news = await self._news(known, engine_id)
        return self._memory.copy(key, news) if news else known

    async def peek(self, key: str, engine_id: int) -> tuple[EngineEvent, ...]:
        """The same for whoever has no part in the launch: nothing of it is remembered.

        Raises:
            LauncherUnreachable: it could not be read.
        """
        known = self._memory.told(key)
        return (*known, *await self._news(known, engine_id))

    async def _news(self, known: Sequence[EngineEvent], engine_id: int) -> list[EngineEvent]:
        wanted = {"job_id": engine_id, "limit": PAGE, "include_cluster_events": True}
        told = read_events(await self._door.read("/jobs/events", wanted))
        seen = set(known)
        if len(told) >= PAGE and told[0] not in seen:  # Between it and what is known may be more.
            told = read_events(await self._door.read("/jobs/events", {**wanted, "limit": None}))
        return [event for event in told if event not in seen]


PATH: Final = "/jobs/queue/v2"
LONGEST: Final = timedelta(minutes=5)
"""How long SkyPilot may be at one listing before another is asked for. Shorter makes an overload worse, as it then is at
both; longer waits in vain for one that died with its server's worker."""
OVER_IN_MIND: Final = 4096
"""Jobs that are over and not asked for again. A lower value asks again while they are looked at; a higher value takes memory."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The managed jobs of this service that were not over at one moment."""

    asked_at: datetime
    """When it was asked for: what happened before is in it."""
    rows: tuple[ManagedJob, ...]
    by_id: Mapping[int, ManagedJob] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {row.engine_id: row for row in self.rows})

    def named(self, name: str) -> list[ManagedJob]:
        """The jobs of this name, those that are not over first, then the oldest; SkyPilot lets many have one name."""
        mine = (row for row in self.rows if row.name == name and not row.never_began)
        return sorted(mine, key=lambda row: (row.status.is_over, row.engine_id))


@dataclass(frozen=True, slots=True)
class _Order:
    """A listing that SkyPilot was asked for."""

    asked_at: datetime
    request_id: str


class QueueCache:
    """The newest listing, shared by all who need one."""

    def __init__(self, door: SkyPilotClient, names: Names, clock: Clock, every_s: float) -> None:
        self._door = door
        self._names = names
        self._clock = clock
        self._every = timedelta(seconds=every_s)
        self._newest: Listing | None = None
        self._due_at: datetime | None = None
        """When the newest is too old; None while there is none."""
        self._order: _Order | None = None
        """The one that SkyPilot is at; None when it is at none."""
        self._turn = asyncio.Lock()
        self._over: OrderedDict[int, ManagedJob] = OrderedDict()
        """Jobs that are over, by number: no listing says anything else of them any more."""
        self._census: _Order | None = None
        """The one for `_ever`, while SkyPilot is at it."""
        self._ever: frozenset[str] | None = None
        """The names of all jobs that there were when this was first asked; None before."""

    async def newest(self) -> Listing:
        """A listing that came no longer ago than the pace allows.

        Raises:
            LauncherUnreachable: there is none.
        """
        async with self._turn:
            if self._newest and self._due_at and self._clock.now() <= self._due_at:
                return self._newest
            return await self._list()

    async def fresh(self) -> Listing:
        """A listing that was asked for after this call, by whoever.

        Raises:
            LauncherUnreachable: there is none.
        """
        moment = self._clock.now()
        async with self._turn:
            # Whoever waited for the turn finds what was asked for meanwhile, and many are served by one.
            listing = self._newest or await self._list()
            while listing.asked_at < moment:
                listing = await self._list()
            return listing

    async def numbered(self, engine_id: int, name: str) -> ManagedJob | None:
        """The job of this number and name, whether it is over or not; None if there is none.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        known = self._over.get(engine_id)
        if known and known.name == name:
            return known
        rows = await self._rows(job_ids=[engine_id])
        job = next((row for row in rows if (row.engine_id, row.name) == (engine_id, name)), None)
        if job and job.status.is_over:
            self._over[engine_id] = job
            while len(self._over) > OVER_IN_MIND:
                self._over.popitem(last=False)
        return job

    async def named(self, name: str) -> Listing:
        """The jobs of this name, whether they are over or not.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        asked_at = self._clock.now()
        rows = await self._rows(name_match=name)
        return Listing(asked_at, tuple(row for row in rows if row.name == name))

    async def was_there(self, name: str) -> bool:
        """Whether a job of this name, over or not, was there when this process first asked. That listing has them all.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        async with self._turn:
            if self._ever is None:
                self._census = await self._order_of(self._census, {})
                order, self._census = self._census, None
                try:
                    value = await self._door.result(order.request_id, PATH)
                except Unanswered:
                    self._census = order
                    raise
                rows = read_listing(value)
                self._ever = frozenset(row.name for row in rows if not row.never_began)
        return name in self._ever

    async def youngest(self) -> int:
        """The highest number of any job at SkyPilot, whoever it belongs to; 0 if there is none.

        Raises:
            LauncherUnreachable: nobody knows.
        """
        page = {"page": 1, "limit": 1, "sort_by": "job_id", "sort_order": "desc"}
        return max((row.engine_id for row in await self._rows(**page)), default=0)

    async def _rows(self, **which: Any) -> list[ManagedJob]:
        body = {"fields": list(FIELDS), "all_users": True, **which}
        return read_listing(await self._door.read(PATH, body))

    async def _order_of(self, order: _Order | None, which: Mapping[str, Any]) -> _Order:
        """The order that SkyPilot is at; another one if there is none, or it takes too long."""
        now = self._clock.now()
        if order and now - order.asked_at < LONGEST:
            return order
        ours = {"name_match": self._names.prefix, **which}
        body = {"fields": list(FIELDS), "all_users": True, **ours}
        return _Order(now, await self._door.ask(PATH, body))

    async def _list(self) -> Listing:
        """The listing that SkyPilot is at, or another. It is never at two: one that it is slow with is waited for."""
        self._order = await self._order_of(self._order, {"skip_finished": True})
        order, self._order = self._order, None
        try:
            value = await self._door.result(order.request_id, PATH)
        except Unanswered:
            self._order = order
            raise
        self._newest = Listing(order.asked_at, tuple(read_listing(value)))
        self._due_at = self._clock.now() + self._every
        return self._newest
