"""Limits of jobs at which no look has come in time: money and time run on while a launcher keeps the looks waiting.

No launcher is asked here. Workers receive the decision as the answer to their next report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.reconcile import ReconcileContext, decide_unseen, ms_until_decision
from holdfast.errors import BudgetSpent, StaleWrite, StoreUnavailable
from holdfast.ports import Clock
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable

log = logging.getLogger(__name__)

LATE_S: Final = 2.0
"""A job that is leased for so long, to any replica, or whose limit is passed for so long, is held to its limits without a look. A
lower value does so beside looks that are under way; a higher value lets money run on for longer."""
EVERY_S: Final = 1.0
RECOUNT_S: Final = 2.0
"""After so long a job is examined again where a budget pays for it, since others spend from that, too."""


class Overdue:
    """Holds jobs to their limits while their looks are late."""

    def __init__(
        self,
        *,
        journal: Journal,
        watches: LeaseTable,
        clock: Clock,
        terms: Callable[[Job], ReconcileContext],
        lease_s: float,
    ) -> None:
        self._journal = journal
        self._watches = watches
        self._clock = clock
        self._terms = terms
        self._lease_s = lease_s
        self._examined: dict[str, tuple[int, datetime]] = {}
        """Number of the last fact of a job as it was examined, and when something may be due if no other follows."""

    def hold(self, job_id: str) -> Job:
        """The job after its limits of money and time were applied, whatever its launcher would say.

        Raises:
            StaleWrite: someone else wrote to the job first.
            StoreUnavailable: nothing was recorded.
        """
        job = self._journal.read(job_id)  # Its workers may have reported in the meantime.
        plan = decide_unseen(job, self._clock.now(), self._terms(job))
        return self._journal.append(job, plan.record)

    async def hold_all(self) -> None:
        """Hold to their limits all jobs whose look is late or takes too long, whichever replica is at it.

        Raises:
            StoreUnavailable: the database cannot be used.
        """
        now = self._clock.now()
        # The lease of a look that has begun less than LATE_S ago ends later than this.
        late = self._watches.due_by(now + timedelta(seconds=self._lease_s - LATE_S))
        self._examined = {key: known for key, known in self._examined.items() if key in late}
        for job_id, seq in late.items():
            known_seq, again_at = self._examined.get(job_id, (0, now))
            if seq == known_seq and now < again_at:
                continue
            with suppress(StaleWrite, BudgetSpent):  # It is examined again in a second.
                job = self.hold(job_id)
                self._examined[job_id] = job.seq, self._again_at(job)
            await asyncio.sleep(0)

    def _again_at(self, job: Job) -> datetime:
        now, terms = self._clock.now(), self._terms(job)
        within_ms = ms_until_decision(job, now, terms)
        moment = datetime.max.replace(tzinfo=now.tzinfo)
        if within_ms is not None:
            moment = now + timedelta(milliseconds=max(0, within_ms), seconds=LATE_S)
        return min(moment, now + timedelta(seconds=RECOUNT_S)) if terms.purses else moment


async def hold_on(overdue: Overdue) -> None:
    """Hold jobs to their limits until cancelled. A bug that one round brings to light stops none of the later ones."""
    while True:
        await asyncio.sleep(EVERY_S)
        held = asyncio.create_task(overdue.hold_all())
        await asyncio.wait([held])
        error = held.exception()
        if isinstance(error, StoreUnavailable):
            log.error("limits are not watched: %s", error.detail)
        elif error:
            log.error("a bug in watching limits; the next round is in %g s", EVERY_S, exc_info=error)  # fmt: skip
