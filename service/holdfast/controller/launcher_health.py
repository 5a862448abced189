"""Health of the launchers, probed every 15 seconds in the controller thread.

API routes return the newest probe and never wait for a launcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from holdfast.domain.jobfile.spec import Engine
from holdfast.errors import LauncherUnreachable
from holdfast.ports import Clock, Launcher, LauncherHealth, RemoteLauncher

log = logging.getLogger(__name__)

EVERY_S: Final = 15.0
"""Seconds between two probes. A lower value costs the engine more responses; a higher value
displays an engine as healthy long after it has failed."""


class LauncherHealthMonitor:
    """The newest probe of each launcher."""

    def __init__(self, launchers: Mapping[Engine, Launcher], clock: Clock) -> None:
        self._remote = {
            key: item for key, item in launchers.items() if isinstance(item, RemoteLauncher)
        }
        self._clock = clock
        self._health = {engine: LauncherHealth(engine=engine) for engine in launchers}

    def read(self) -> Sequence[LauncherHealth]:
        """The health of each launcher. Thread-safe, since each entry is replaced as a whole."""
        return tuple(self._health.values())

    async def probe_all(self) -> None:
        """Probe every launcher with a remote engine."""
        await asyncio.gather(*map(self._probe, self._remote))

    async def run(self) -> None:
        """Probe until cancelled.

        An unexpected error in one probe does not stop the later ones.
        """
        while True:
            probe = asyncio.create_task(self.probe_all())
            await asyncio.wait([probe])
            if error := probe.exception():
                log.error(
                    "unexpected error in a launcher probe; next probe in %g s",
                    EVERY_S,
                    exc_info=error,
                )
            await asyncio.sleep(EVERY_S)

    async def _probe(self, engine: Engine) -> None:
        before = self._health[engine]
        try:
            info = await self._remote[engine].engine_info()
        except LauncherUnreachable as error:
            if before.error is None:
                log.warning("%s: %s", engine, error.detail)
            since = before.since or self._clock.now()
            self._health[engine] = replace(before, error=error.detail, since=since)
        else:
            if before.error is not None:
                log.info("%s responds again", engine)
            now = self._clock.now()
            self._health[engine] = LauncherHealth(engine=engine, engine_info=info, answered_at=now)
