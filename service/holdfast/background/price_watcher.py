"""Prices while nodes stand: a market that tells its history is asked now and then, and what changed is recorded.

A change carries the time at which it took effect, so that it does not matter when it is told; and each is recorded once,
by whichever replica comes first. Where nobody tells a history, the price of when the nodes came goes on to hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, Protocol

from holdfast.domain.attempts import Attempt, gather
from holdfast.domain.events import PriceChanged
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.pricing.price_history import price_changes, price_query
from holdfast.domain.pricing.quotes import Change, PriceQuery
from holdfast.errors import StaleWrite, StoreUnavailable
from holdfast.ports import Clock
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries

log = logging.getLogger(__name__)

EVERY_S: Final = 600.0
"""Between two questions about a job. Smaller: more calls to a cloud, whose prices change a few times a day. Bigger:
`max_hourly_cost_usd` and `max_cost_usd` hear of a dearer price so much later."""
LATE: Final = timedelta(hours=1)
"""How long after the end of a placement its prices are still asked for: clouds take minutes to tell. Smaller: a last
change is missed. Bigger: more calls."""
SOURCE: Final = "AWS spot price history"
PAGE: Final = 200
LIVE: Final = tuple(str(state) for state in State if state is not State.ENDED)


class Histories(Protocol):
    """Whoever knows what nodes have cost: a catalog."""

    def history(self, wanted: PriceQuery, since: datetime, until: datetime) -> Sequence[Change]:
        """See `PriceCatalog`."""
        ...


class PriceWatcher:
    """Keeps the prices of what stands."""

    def __init__(
        self, *, journal: Journal, reading: Queries, catalog: Histories, clock: Clock
    ) -> None:
        self._journal = journal
        self._reading = reading
        self._catalog = catalog
        self._clock = clock
        self._watched: set[str] = set()

    def look(self) -> int:
        """How many changes were recorded. Blocking, as clouds are asked: call it from a thread.

        Raises:
            StoreUnavailable: the database cannot be used; what was not recorded is found again.
        """
        jobs = {job.id: job for job in self._live() if _may_change(job)}
        for job_id in self._watched - jobs.keys():
            jobs[job_id] = self._journal.read(job_id)
        found = 0
        for job in jobs.values():
            with suppress(StaleWrite):  # It went on meanwhile; there is another time.
                found += self._reprice(job)
        now = self._clock.now()
        self._watched = {job.id for job in jobs.values() if _recent(job, now)}
        return found

    async def look_on(self) -> None:
        """Look until cancelled. A bug that one look brings to light stops none of the later ones."""
        while True:
            look = asyncio.create_task(asyncio.to_thread(self.look))
            await asyncio.wait([look])
            if isinstance(error := look.exception(), StoreUnavailable):
                log.warning("prices are not looked at: %s", error.detail)
            elif error:
                log.error("a bug in prices; the next look is in %g s", EVERY_S, exc_info=error)
            await asyncio.sleep(EVERY_S)

    def _live(self) -> Iterator[Job]:
        after = None
        while True:
            page = self._reading.jobs(limit=PAGE, statuses=LIVE, after=after)
            yield from page.jobs
            if (after := page.next) is None:
                return

    def _reprice(self, job: Job) -> int:
        now = self._clock.now()
        recent = _recent(job, now)
        if not recent:
            return 0
        attempts = gather([item.event for item in self._journal.events(job.id)], {})
        told = [
            change
            for attempt in attempts
            if attempt.ready.attempt in recent
            for change in self._news(attempt)
        ]
        self._journal.append(job, told)
        return len(told)

    def _news(self, attempt: Attempt) -> Iterator[PriceChanged]:
        now = self._clock.now()
        until = attempt.ended_at or now
        for number, part in enumerate(attempt.ready.parts):
            if (node := price_query(attempt.ready, part)) is not None:
                told = self._catalog.history(node, attempt.ready.at, until)
                yield from price_changes(attempt, number, told, SOURCE, now)


def _may_change(job: Job) -> bool:
    """Whether its nodes stand at a provider's: those places are written with a slash, as `aws/us-east-1/us-east-1a`."""
    return bool(job.account.meters) and "/" in (job.zone or "")


def _recent(job: Job, now: datetime) -> set[int]:
    """Attempts that stand, or stood a while ago."""
    return {
        meter.attempt
        for meter in job.account.meters
        if meter.until is None or now - meter.until < LATE
    }
