"""The history of launches: read from SkyPilot by the page, and remembered, as SkyPilot forgets it after thirty days."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.memory import Memory
from holdfast.adapters.skypilot.rows import read_events
from holdfast.domain.admission import EngineEvent

PAGE: Final = 100
"""Events in one reading. With fewer, more happens between two looks than a page holds, and all are read; with more,
each look costs SkyPilot more."""


class Chronicle:
    """The histories of all launches."""

    def __init__(self, door: Door, memory: Memory) -> None:
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
