"""The sweep: what runs at a launcher although its launch is over, found by listing, not by having cancelled it.

It changes no state. What may still be billed is written down beside the job, for people to see; what is gone, too.
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

_UNKNOWN: Final = (LauncherUnreachable, StoreUnavailable)
_FIRST_S: Final = 5.0
"""Until the first sweep after the start. A lower value finds no launcher ready; a higher value leaves people after a restore without an answer."""


class OrphanCleaner:
    """Asks launchers what they have left behind, and writes it down."""

    def __init__(
        self, *, journal: Journal, launchers: Mapping[Engine, Launcher], clock: Clock
    ) -> None:
        self._journal = journal
        self._launchers = launchers
        self._clock = clock

    async def sweep(self) -> None:
        """One sweep at every launcher that has one. What could not be found out is left to the next."""
        for engine, launcher in self._launchers.items():
            if not isinstance(launcher, OrphanScan):
                continue
            try:
                for stray in await launcher.sweep(self.is_live):
                    self._note(stray)
            except _UNKNOWN as error:
                log.warning("the sweep at %s found out nothing: %s", engine, error.detail)

    def is_live(self, key: str) -> bool | None:
        """Whether a launch may run: it is the newest of a job that is neither paused nor over.

        None for a launch that this database never requested. A launch is recorded before it is submitted, so another
        database requested it: an earlier one, or this one before it was restored from a backup.

        Raises:
            StoreUnavailable: nobody knows.
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

    def _note(self, stray: OrphanedResource) -> None:
        job = self._job(stray.key) if stray.key else None
        log.warning(
            "%s has no business there: %s%s",
            stray.key or "something of nobody's",
            stray.what,
            " (stopped)" if stray.stopped else "",
        )
        if job is not None and not _may_run(job, stray.key):
            with suppress(StaleWrite):  # Another replica sweeps, too.
                self._journal.append(job, self._news(job, stray))

    def _news(self, job: Job, stray: OrphanedResource) -> list[Event]:
        """What is not written down yet of something that a launch of a job has left behind."""
        if stray.what in job.leftovers:
            return [self._gone(stray)] if stray.stopped else []
        left = CleanupFailed(at=stray.since, detail=stray.what)
        if not stray.stopped:
            return [left]
        facts = (item.event for item in self._journal.events(job.id))
        told = any(isinstance(f, CleanupFailed) and f.detail == stray.what for f in facts)
        return [] if told else [left, self._gone(stray)]

    def _gone(self, stray: OrphanedResource) -> CleanedUp:
        return CleanedUp(at=self._clock.now(), detail=stray.what)


def _job_of(key: str) -> str:
    return key.rpartition("-")[0]


def _may_run(job: Job, key: str | None) -> bool:
    return job.is_launched and job.launch_key == key


async def sweep_now_and_then(sweeper: OrphanCleaner, every_s: float) -> None:
    """Sweep until cancelled. A bug that one sweep brings to light stops none of the later ones."""
    pause_s = min(_FIRST_S, every_s)
    while True:
        await asyncio.sleep(pause_s)
        pause_s = every_s
        sweep = asyncio.create_task(sweeper.sweep())
        await asyncio.wait([sweep])
        if error := sweep.exception():
            log.error("a bug in the sweep; the next one is in %g s", every_s, exc_info=error)
