"""Copies logs that would be lost with their nodes, every few seconds while nodes run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.selection import JobFilter
from holdfast.domain.jobs.transitions import WITH_NODES
from holdfast.errors import StoreUnavailable
from holdfast.ports import CopiesLogs, Launcher
from holdfast.store.queries import Queries

log = logging.getLogger(__name__)

EVERY_S: Final = 10.0
"""Seconds between two copies of a log. A lower value adds load on the engine; a higher value
loses more of the last lines of nodes that are lost without notice."""
PAGE_SIZE: Final = 200


class LogCopier:
    """Makes launchers copy the logs of all jobs that have nodes."""

    def __init__(self, *, queries: Queries, launchers: Mapping[Engine, Launcher]) -> None:
        self._queries = queries
        self._launchers = [item for item in launchers.values() if isinstance(item, CopiesLogs)]

    async def run_once(self) -> None:
        """Copy the new part of each log once.

        Raises:
            StoreUnavailable: the database is unavailable.
        """
        if not self._launchers:
            return
        jobs = await asyncio.to_thread(lambda: [*self._jobs_with_nodes()])
        keys = [job.launch_key for job in jobs]
        await asyncio.gather(*(each.copy_logs(key) for each in self._launchers for key in keys))

    async def run(self) -> None:
        """Copy logs until cancelled.

        An unexpected error in one round does not stop the later ones.
        """
        while True:
            round_ = asyncio.create_task(self.run_once())
            await asyncio.wait([round_])
            if isinstance(error := round_.exception(), StoreUnavailable):
                log.warning("logs are not copied: %s", error.detail)
            elif error:
                log.error(
                    "unexpected error in log copies; next round in %g s", EVERY_S, exc_info=error
                )
            await asyncio.sleep(EVERY_S)

    def _jobs_with_nodes(self) -> Iterator[Job]:
        after = None
        while True:
            page = self._queries.jobs(
                limit=PAGE_SIZE, after=after, where=JobFilter(statuses=WITH_NODES)
            )
            yield from (job for job in page.jobs if job.placed)
            if (after := page.next) is None:
                return
