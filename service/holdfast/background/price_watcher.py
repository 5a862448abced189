"""Records price changes of running nodes, from providers that have a price history.

A change carries the time at which it took effect, so a late report is harmless. Each change is recorded once, by
the first replica that reads it. Without a price history, the price at the start of the nodes remains in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, Protocol

from holdfast.domain.attempts import Attempt, collect_attempts
from holdfast.domain.billing.group_bill import group_stays
from holdfast.domain.events import PriceChanged
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.selection import JobFilter
from holdfast.domain.pricing.price_history import price_changes, price_query
from holdfast.domain.pricing.quotes import PricePoint, PriceQuery
from holdfast.errors import StaleWrite, StoreUnavailable
from holdfast.ports import Clock
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries

log = logging.getLogger(__name__)

EVERY_S: Final = 600.0
"""Seconds between two requests for a job. A lower value adds calls to clouds whose prices
change a few times a day; a higher value delays the effect of price increases on
`max_hourly_cost_usd` and `max_cost_usd`."""
GRACE: Final = timedelta(hours=1)
"""Time after the end of a placement in which its prices are still requested, as clouds
publish them minutes late. A lower value misses a last change; a higher value adds calls."""
SOURCE: Final = "AWS spot price history"
PAGE_SIZE: Final = 200
LIVE_STATES: Final = tuple(str(state) for state in State if state is not State.ENDED)


class PriceHistorySource(Protocol):
    """A source of price histories: a catalog."""

    def history(self, wanted: PriceQuery, since: datetime, until: datetime) -> Sequence[PricePoint]:
        """See `PriceCatalog`."""
        ...


class PriceWatcher:
    """Records price changes of running nodes."""

    def __init__(
        self, *, journal: Journal, queries: Queries, catalog: PriceHistorySource, clock: Clock
    ) -> None:
        self._journal = journal
        self._queries = queries
        self._catalog = catalog
        self._clock = clock
        self._watched: set[str] = set()

    def run_once(self) -> int:
        """Record the changes of all live jobs and return their number.

        Blocking, as clouds are called: call it from a thread.

        Raises:
            StoreUnavailable: the database is unavailable; the next round finds whatever was not recorded.
        """
        jobs = {job.id: job for job in self._live_jobs() if _may_change(job)}
        for job_id in self._watched - jobs.keys():
            jobs[job_id] = self._journal.read(job_id)
        found = 0
        for job in jobs.values():
            with suppress(
                StaleWrite
            ):  # The job changed in the meantime; the next round repeats this.
                found += self._record_price_changes(job)
        now = self._clock.now()
        self._watched = {job.id for job in jobs.values() if _recent_attempts(job, now)}
        return found

    async def run(self) -> None:
        """Run until cancelled.

        An unexpected error in one round does not stop the later ones.
        """
        while True:
            round_ = asyncio.create_task(asyncio.to_thread(self.run_once))
            await asyncio.wait([round_])
            if isinstance(error := round_.exception(), StoreUnavailable):
                log.warning("prices are not updated: %s", error.detail)
            elif error:
                log.error(
                    "unexpected error in price updates; next round in %g s", EVERY_S, exc_info=error
                )
            await asyncio.sleep(EVERY_S)

    def _live_jobs(self) -> Iterator[Job]:
        after = None
        while True:
            page = self._queries.jobs(
                limit=PAGE_SIZE, after=after, where=JobFilter(statuses=LIVE_STATES)
            )
            yield from page.jobs
            if (after := page.next) is None:
                return

    def _record_price_changes(self, job: Job) -> int:
        now = self._clock.now()
        recent = _recent_attempts(job, now)
        if not recent:
            return 0
        attempts = collect_attempts([item.event for item in self._journal.events(job.id)], {})
        changes = [
            change
            for attempt in attempts
            if attempt.ready.attempt in recent
            for change in self._price_changes(attempt)
        ]
        self._journal.append(job, changes)
        return len(changes)

    def _price_changes(self, attempt: Attempt) -> Iterator[PriceChanged]:
        now = self._clock.now()
        for number in range(len(attempt.ready.parts)):
            points = list[PricePoint]()
            for stay in group_stays(attempt, number):
                if (node := price_query(attempt.ready, stay.placed)) is not None:
                    until = stay.until or attempt.ended_at or now
                    found = self._catalog.history(node, stay.since, until)
                    points += [each for each in found if stay.since < each.at]
            yield from price_changes(attempt, number, points, SOURCE, now)


def _may_change(job: Job) -> bool:
    """Whether its nodes run at a provider.

    Then their zones contain a slash, as in `aws/us-east-1/us-east-1a`.
    """
    return bool(job.account.meters) and "/" in (job.zone or "")


def _recent_attempts(job: Job, now: datetime) -> set[int]:
    """Attempts that run, or ended a short time ago."""
    return {
        meter.attempt
        for meter in job.account.meters
        if meter.until is None or now - meter.until < GRACE
    }
