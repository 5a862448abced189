"""The queue of SkyPilot, listed once for all jobs: each listing costs its server seconds, however many jobs there are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.naming import Names
from holdfast.adapters.skypilot.replies import Unanswered
from holdfast.adapters.skypilot.rows import FIELDS, Row, read_listing
from holdfast.ports import Clock

PATH: Final = "/jobs/queue/v2"
LONGEST: Final = timedelta(minutes=5)
"""How long SkyPilot may be at one listing before another is asked for. Shorter makes an overload worse, as it then is at
both; longer waits in vain for one that died with its server's worker."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All managed jobs of this service at one moment."""

    asked_at: datetime
    """When it was asked for: what happened before is in it."""
    rows: tuple[Row, ...]
    by_id: Mapping[int, Row] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {row.engine_id: row for row in self.rows})

    def named(self, name: str) -> list[Row]:
        """The jobs of this name, those that are not over first, then the oldest; SkyPilot lets many have one name."""
        mine = (row for row in self.rows if row.name == name and not row.never_began)
        return sorted(mine, key=lambda row: (row.status.is_over, row.engine_id))


@dataclass(frozen=True, slots=True)
class _Order:
    """A listing that SkyPilot was asked for."""

    asked_at: datetime
    request_id: str


class Listings:
    """The newest listing, shared by all who need one."""

    def __init__(self, door: Door, names: Names, clock: Clock, every_s: float) -> None:
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

    async def any(self) -> Listing:
        """The newest listing that there is, however old; one of now if there is none.

        Raises:
            LauncherUnreachable: there is none.
        """
        return self._newest or await self.newest()

    async def _list(self) -> Listing:
        """The listing that SkyPilot is at, or another. It is never at two: one that it is slow with is waited for."""
        now = self._clock.now()
        if self._order is None or now - self._order.asked_at >= LONGEST:
            body = {"fields": list(FIELDS), "all_users": True, "name_match": self._names.prefix}
            self._order = _Order(now, await self._door.ask(PATH, body))
        order, self._order = self._order, None
        try:
            value = await self._door.result(order.request_id, PATH)
        except Unanswered:
            self._order = order
            raise
        self._newest = Listing(order.asked_at, tuple(read_listing(value)))
        self._due_at = self._clock.now() + self._every
        return self._newest
