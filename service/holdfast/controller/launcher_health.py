"""What is known of the engines behind launchers: one probe in a while, in the thread of the reconciler.

A route that shows it reads what the newest probe found out, and never waits for an engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from holdfast.domain.jobfile.spec import Engine
from holdfast.errors import LauncherUnreachable
from holdfast.ports import Clock, EngineInfo, Launcher, RemoteLauncher

log = logging.getLogger(__name__)

EVERY_S: Final = 15.0
"""Between two probes. Shorter costs the engine answers; longer shows an engine as well that has long been away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherHealth:
    """What is known of the engine behind one launcher."""

    engine: Engine
    vitals: EngineInfo | None = None
    """What it said last; None before its first answer, and for a launcher that has nobody to ask."""
    answered_at: datetime | None = None
    trouble: str | None = None
    """Why the newest probe found nothing out; None when it did."""
    since: datetime | None = None
    """When the trouble was first seen; None without one."""


class LauncherHealthMonitor:
    """The newest probe of each launcher."""

    def __init__(self, launchers: Mapping[Engine, Launcher], clock: Clock) -> None:
        self._remote = {
            key: item for key, item in launchers.items() if isinstance(item, RemoteLauncher)
        }
        self._clock = clock
        self._known = {engine: LauncherHealth(engine=engine) for engine in launchers}

    def read(self) -> Sequence[LauncherHealth]:
        """What is known now. It may be called from any thread: each entry is replaced as a whole."""
        return tuple(self._known.values())

    async def beat(self) -> None:
        """Probe every launcher that has an engine to ask."""
        await asyncio.gather(*map(self._probe, self._remote))

    async def beat_on(self) -> None:
        """Probe until cancelled. A bug that one probe brings to light stops none of the later ones."""
        while True:
            probe = asyncio.create_task(self.beat())
            await asyncio.wait([probe])
            if error := probe.exception():
                log.error("a bug in a probe; the next one is in %g s", EVERY_S, exc_info=error)
            await asyncio.sleep(EVERY_S)

    async def _probe(self, engine: Engine) -> None:
        before = self._known[engine]
        try:
            vitals = await self._remote[engine].vitals()
        except LauncherUnreachable as error:
            if before.trouble is None:
                log.warning("%s: %s", engine, error.detail)
            since = before.since or self._clock.now()
            self._known[engine] = replace(before, trouble=error.detail, since=since)
        else:
            if before.trouble is not None:
                log.info("%s answers again", engine)
            now = self._clock.now()
            self._known[engine] = LauncherHealth(engine=engine, vitals=vitals, answered_at=now)
