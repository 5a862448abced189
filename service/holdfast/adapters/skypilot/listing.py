"""The queue of SkyPilot, listed once for all jobs: each listing costs its server seconds, however many jobs there are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.naming import Names
from holdfast.adapters.skypilot.rows import FIELDS, Row, read_listing
from holdfast.ports import Clock


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


class Listings:
    """The newest listing, shared by all who need one."""

    def __init__(self, door: Door, names: Names, clock: Clock, every_s: float) -> None:
        self._door = door
        self._names = names
        self._clock = clock
        self._every = timedelta(seconds=every_s)
        self._newest: Listing | None = None
        self._turns: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    async def newest(self) -> Listing:
        """A listing that is not older than the pace allows.

        Raises:
            LauncherUnreachable: there is none.
        """
        return await self._since(self._clock.now() - self._every)

    async def fresh(self) -> Listing:
        """A listing that was asked for after this call, by whoever.

        Raises:
            LauncherUnreachable: there is none.
        """
        return await self._since(self._clock.now())

    async def any(self) -> Listing:
        """The newest listing that there is, however old; one of now if there is none.

        Raises:
            LauncherUnreachable: there is none.
        """
        return self._newest or await self.newest()

    async def _since(self, moment: datetime) -> Listing:
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turn:
            # Whoever waited for the turn finds what was asked for meanwhile, and many are served by one.
            if self._newest and self._newest.asked_at >= moment:
                return self._newest
            return await self._ask()

    async def _ask(self) -> Listing:
        asked_at = self._clock.now()
        body = {"fields": list(FIELDS), "all_users": True, "name_match": self._names.prefix}
        value = await self._door.read("/jobs/queue/v2", body)
        self._newest = Listing(asked_at, tuple(read_listing(value)))
        return self._newest
