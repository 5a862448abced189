"""Copies of logs that would go with the nodes: made every few seconds while nodes stand, whether anybody reads them or not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import Job, State
from holdfast.errors import StoreUnavailable
from holdfast.ports import KeepsLogs, Launcher
from holdfast.store.queries import Queries

log = logging.getLogger(__name__)

EVERY_S: Final = 10.0
"""Between two copies of a log. A lower value keeps an engine busy with copying; a higher value loses more of the last lines
of nodes that are gone without a notice."""
PAGE: Final = 200
WITH_NODES: Final = (State.STARTING, State.TRAINING, State.PAUSING, State.STOPPING)


class LogKeeper:
    """Has launchers copy the logs of all jobs that have nodes."""

    def __init__(self, *, reading: Queries, launchers: Mapping[Engine, Launcher]) -> None:
        self._reading = reading
        self._keepers = [item for item in launchers.values() if isinstance(item, KeepsLogs)]

    async def look(self) -> None:
        """Copy once what is new in each log.

        Raises:
            StoreUnavailable: the database cannot be used.
        """
        if not self._keepers:
            return
        jobs = await asyncio.to_thread(lambda: [*self._placed()])
        keys = [job.launch_key for job in jobs]
        await asyncio.gather(*(each.keep_log(key) for each in self._keepers for key in keys))

    async def look_on(self) -> None:
        """Look until cancelled. A bug that one look brings to light stops none of the later ones."""
        while True:
            look = asyncio.create_task(self.look())
            await asyncio.wait([look])
            if isinstance(error := look.exception(), StoreUnavailable):
                log.warning("logs are not copied: %s", error.detail)
            elif error:
                log.error(
                    "a bug in copying logs; the next look is in %g s", EVERY_S, exc_info=error
                )
            await asyncio.sleep(EVERY_S)

    def _placed(self) -> Iterator[Job]:
        after = None
        while True:
            page = self._reading.jobs(limit=PAGE, statuses=WITH_NODES, after=after)
            yield from (job for job in page.jobs if job.placed)
            if (after := page.next) is None:
                return
