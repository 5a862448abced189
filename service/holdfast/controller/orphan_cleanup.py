"""Finds and stops resources that run at a launcher although their launch has ended.

Orphans are found by listing the resources at the launcher. Job state does not change: an event records what may
still be billed, and another one its removal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from holdfast.domain.events import CleanedUp, CleanupFailed, Event
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import Job
from holdfast.errors import LauncherUnreachable, NotFound, StaleWrite, StoreUnavailable
from holdfast.ports import Clock, Launcher, OrphanedResource, OrphanScan
from holdfast.store.journal import Journal

log = logging.getLogger(__name__)

_UNAVAILABLE: Final = (LauncherUnreachable, StoreUnavailable)
_FIRST_S: Final = 5.0
"""Seconds from the start to the first sweep. A lower value finds no launcher ready; a higher
value delays the result after a restore."""


class OrphanCleaner:
    """Lists orphaned resources at launchers and records them."""

    def __init__(
        self, *, journal: Journal, launchers: Mapping[Engine, Launcher], clock: Clock
    ) -> None:
        self._journal = journal
        self._launchers = launchers
        self._clock = clock
        self._running: dict[Engine, int] = {}

    def running(self) -> Mapping[Engine, int]:
        """Orphans that the newest sweep of each launcher found and could not stop. Thread-safe."""
        return dict(self._running)

    async def sweep(self) -> None:
        """Sweep every launcher that supports it once.

        A failed sweep is repeated by the next one.
        """
        for engine, launcher in self._launchers.items():
            if not isinstance(launcher, OrphanScan):
                continue
            try:
                orphans = await launcher.sweep(self.is_live)
                self._running[engine] = sum(not orphan.stopped for orphan in orphans)
                for orphan in orphans:
                    self._record(orphan)
            except _UNAVAILABLE as error:
                log.warning("orphan sweep at %s failed: %s", engine, error.detail)

    def is_live(self, key: str) -> bool | None:
        """Whether a launch may run: it is the newest of a job that is neither paused nor ended.

        None for a launch that this database never requested. A launch is recorded before it is submitted, so
        another database requested it: an earlier one, or this one before it was restored from a backup.

        Raises:
            StoreUnavailable: the answer is unknown.
        """
        job = self._job(key)
        launches = job.launch if job else self._journal.launches_of_removed(_job_of(key))
        number = key.rpartition("-")[2]
        if not number.isdecimal() or int(number) > launches:
            return None
        return job is not None and _may_run(job, key)

    def _job(self, key: str) -> Job | None:
        try:
            return self._journal.read(_job_of(key))
        except NotFound:
            return None

    def _record(self, orphan: OrphanedResource) -> None:
        job = self._job(orphan.key) if orphan.key else None
        log.warning(
            "orphaned resource of %s: %s%s",
            orphan.key or "an unknown launch",
            orphan.description,
            " (stopped)" if orphan.stopped else "",
        )
        if job is not None and not _may_run(job, orphan.key):
            with suppress(StaleWrite):  # Another replica recorded it.
                self._journal.append(job, self._new_events(job, orphan))

    def _new_events(self, job: Job, orphan: OrphanedResource) -> list[Event]:
        """The events about an orphan of a job that are not recorded yet."""
        if orphan.description in job.leftovers:
            return [self._cleaned_up(orphan)] if orphan.stopped else []
        left = CleanupFailed(at=orphan.since, detail=orphan.description)
        if not orphan.stopped:
            return [left]
        events = (item.event for item in self._journal.events(job.id))
        is_recorded = any(
            isinstance(f, CleanupFailed) and f.detail == orphan.description for f in events
        )
        return [] if is_recorded else [left, self._cleaned_up(orphan)]

    def _cleaned_up(self, orphan: OrphanedResource) -> CleanedUp:
        return CleanedUp(at=self._clock.now(), detail=orphan.description)


def _job_of(key: str) -> str:
    return key.rpartition("-")[0]


def _may_run(job: Job, key: str | None) -> bool:
    return job.is_launched and job.launch_key == key


async def run_sweeps(sweeper: OrphanCleaner, every_s: float) -> None:
    """Sweep until cancelled.

    An unexpected error in one sweep does not stop the later ones.
    """
    pause_s = min(_FIRST_S, every_s)
    while True:
        await asyncio.sleep(pause_s)
        pause_s = every_s
        sweep = asyncio.create_task(sweeper.sweep())
        await asyncio.wait([sweep])
        if error := sweep.exception():
            log.error(
                "unexpected error in the orphan sweep; next sweep in %g s", every_s, exc_info=error
            )
