"""Enforces the limits of jobs whose poll is late.

Cost and time accrue while a launcher is slow. No launcher is called here. Workers receive the
decision in the response to their next report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.reconcile import (
    ReconcileContext,
    decide_without_observation,
    ms_until_decision,
)
from holdfast.errors import BudgetSpent, StaleWrite, StoreUnavailable
from holdfast.ports import Clock
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable

log = logging.getLogger(__name__)

LATE_S: Final = 2.0
"""Seconds of lateness after which limits are enforced without a poll: a job is leased to any
replica, or its limit is exceeded, for longer than this. A lower value also acts on polls
in progress; a higher value lets cost accrue for longer."""
EVERY_S: Final = 1.0
RECOUNT_S: Final = 2.0
"""Seconds after which a job paid by a budget is examined again: other jobs spend from that
budget."""


class LimitEnforcer:
    """Enforces the limits of jobs while their polls are late."""

    def __init__(
        self,
        *,
        journal: Journal,
        leases: LeaseTable,
        clock: Clock,
        context: Callable[[Job], ReconcileContext],
        lease_s: float,
    ) -> None:
        self._journal = journal
        self._leases = leases
        self._clock = clock
        self._context = context
        self._lease_s = lease_s
        self._examined: dict[str, tuple[int, datetime]] = {}
        """By job: the number of its last event at the examination, and when to examine it again
        without a new event."""

    def enforce(self, job_id: str) -> Job:
        """Apply the limits of money and time to a job without an observation, and return the job.

        Raises:
            StaleWrite: the job was changed at the same time.
            StoreUnavailable: nothing was recorded.
        """
        job = self._journal.read(job_id)  # Workers may have reported in the meantime.
        plan = decide_without_observation(job, self._clock.now(), self._context(job))
        return self._journal.append(job, plan.record)

    async def enforce_all(self) -> None:
        """Enforce the limits of all jobs whose poll is late or slow, on whichever replica it runs.

        Raises:
            StoreUnavailable: the database is unavailable.
        """
        now = self._clock.now()
        # A poll that began less than LATE_S ago has a lease beyond this time.
        late = self._leases.due_by(now + timedelta(seconds=self._lease_s - LATE_S))
        self._examined = {key: known for key, known in self._examined.items() if key in late}
        for job_id, seq in late.items():
            known_seq, again_at = self._examined.get(job_id, (0, now))
            if seq == known_seq and now < again_at:
                continue
            with suppress(StaleWrite, BudgetSpent):  # The next round examines the job again.
                job = self.enforce(job_id)
                self._examined[job_id] = job.seq, self._again_at(job)
            await asyncio.sleep(0)

    def _again_at(self, job: Job) -> datetime:
        now, context = self._clock.now(), self._context(job)
        within_ms = ms_until_decision(job, now, context)
        moment = datetime.max.replace(tzinfo=now.tzinfo)
        if within_ms is not None:
            moment = now + timedelta(milliseconds=max(0, within_ms), seconds=LATE_S)
        return min(moment, now + timedelta(seconds=RECOUNT_S)) if context.budgets else moment


async def run_limit_enforcement(enforcer: LimitEnforcer) -> None:
    """Enforce limits until cancelled.

    An unexpected error in one round does not stop the later ones.
    """
    while True:
        await asyncio.sleep(EVERY_S)
        round_ = asyncio.create_task(enforcer.enforce_all())
        await asyncio.wait([round_])
        error = round_.exception()
        if isinstance(error, StoreUnavailable):
            log.error("limits are not enforced: %s", error.detail)
        elif error:
            log.error("unexpected error in limit enforcement; next round in %g s", EVERY_S, exc_info=error)  # fmt: skip
