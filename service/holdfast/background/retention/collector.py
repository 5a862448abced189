"""The janitor: goes from store to store, removes what is not to be kept, and says of which store it could not.

A visit takes no hint and may be cut off anywhere. Stores are slow, so that each visit has a thread; a few at once.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.commit_summary import unread_format_of

from holdfast.background.retention.deletion import Deleter, DeletionBudget
from holdfast.background.retention.inventory import (
    InventoryCache,
    JobRetentionState,
    StoreInventory,
    StoreScan,
    scan_store,
)
from holdfast.domain.checkpoints.retention import Grace, RetentionPlan, decide
from holdfast.domain.events import Removal
from holdfast.errors import DepotRefused, DepotUnreachable, NotFound, StoreUnavailable
from holdfast.ports import CheckpointBucket, Clock, OpenDepot
from holdfast.store.journal import Journal
from holdfast.store.retention_queue import RetentionLease, RetentionQueue

log = logging.getLogger(__name__)

VISITS_AT_ONCE: Final = 4
"""Fewer: a store that hangs holds up the others. More: connections and memory for work that is in no hurry."""
BUDGET_S: Final = 120.0
"""Of one visit. Shorter: a store with much to remove is looked through again and again. Longer: others wait."""
LEASE_S: Final = 600.0
"""For one visit. Shorter than one takes: two replicas remove the same things. Longer: a dead replica's wait so long."""
TICK_S: Final = 1.0
"""Between two looks at who is due."""
BOOKS_IN_MIND: Final = 1024
"""Jobs whose facts are not read again from the first for each visit. More: memory."""
MOST_MISSED: Final = 100
"""Checkpoints that are asked for one by one in one visit, as they should be there and were not listed."""

UNREACHABLE_S: Final = 60.0
REFUSED_S: Final = 600.0
"""Before another try after a store gave no answer, or said no. Each time it is half as long as the trouble has lasted, at
least this and at most an hour: sooner is noise, later leaves what costs money."""
LONGEST_WAIT_S: Final = 3600.0
GIVE_UP_S: Final = 7 * 86_400.0
"""Of trouble with the store of a job that has ended. Shorter gives up for a holiday; longer asks for ever after a bucket
that somebody has removed on purpose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionSettings:
    """How often the janitor comes, and how long it leaves things alone."""

    every_s: float = 60.0
    """Between two visits at a job. The store is asked if it trains, or if anything was told of it."""
    idle_s: float = 600.0
    """At most, between two looks at the store of a job of which nobody tells anything."""
    grace: Grace = field(
        default_factory=lambda: Grace(commits=timedelta(minutes=5), uploads=timedelta(days=1))
    )


class CheckpointCollector:
    """Tidies the stores of all jobs of which the service removes old checkpoints."""

    def __init__(
        self,
        *,
        journal: Journal,
        upkeep: RetentionQueue,
        open_depot: OpenDepot,
        clock: Clock,
        manners: RetentionSettings = RetentionSettings(),
    ) -> None:
        self._journal = journal
        self._upkeep = upkeep
        self._open_depot = open_depot
        self._clock = clock
        self._manners = manners
        self._book = functools.lru_cache(BOOKS_IN_MIND)(
            lambda job: JobRetentionState.open(job, journal)
        )
        self._stopped = threading.Event()

    async def tidy_on(self) -> None:
        """Visit who is due until cancelled. A bug that one visit brings to light stops none of the others."""
        self._forgive()
        under_way: dict[str, asyncio.Future[None]] = {}
        loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(VISITS_AT_ONCE, thread_name_prefix="janitor")
        try:
            while True:
                for turn in self._claim(VISITS_AT_ONCE - len(under_way)):
                    # Its lease may be over before its visit is; then nobody else comes meanwhile.
                    if turn.job_id not in under_way:
                        visit = loop.run_in_executor(threads, self.tidy, turn)
                        under_way[turn.job_id] = visit
                        visit.add_done_callback(functools.partial(_forget, under_way, turn.job_id))
                await _one_of(under_way, min(TICK_S, self._manners.every_s))
        finally:
            self._stopped.set()
            for visit in [*under_way.values()]:
                visit.cancel()  # Its thread goes on to the next look at the time; nobody waits for it.
            threads.shutdown(wait=False, cancel_futures=True)

    def tidy_all(self) -> int:
        """Visit all that are due, one after the other; how many they were."""
        turns = self._upkeep.claim(self._clock.now(), LEASE_S, limit=1000)
        for turn in turns:
            self.tidy(turn)
        return len(turns)

    def tidy(self, turn: RetentionLease) -> None:
        """One visit, and when to come again."""
        try:
            book = self._book(turn.job_id)
            book.catch_up(self._journal)
            if not self._has_to_look(book):
                self._upkeep.put_off(turn, self._in(self._manners.every_s))
                return
            try:
                due_at = self._visit(book)
            except (DepotUnreachable, DepotRefused) as error:
                self._in_trouble(turn, book, error)
            else:
                if book.looked:
                    self._upkeep.done(turn, self._clock.now(), due_at)
                else:
                    self._upkeep.put_off(turn, self._clock.now())
        except NotFound:
            log.info("%s was removed while its store was tidied", turn.job_id)
        except StoreUnavailable as error:
            # The lease brings it back once the database does.
            log.error("%s was not tidied: %s", turn.job_id, error.detail)  # noqa: TRY400 - the sentence says all

    def _forgive(self) -> None:
        """Whoever starts the service anew may have given it other keys."""
        try:
            self._upkeep.retry(self._clock.now())
        except StoreUnavailable as error:
            log.error("stores are tried again later: %s", error.detail)  # noqa: TRY400 - the sentence says all

    def _claim(self, limit: int) -> list[RetentionLease]:
        try:
            return self._upkeep.claim(self._clock.now(), LEASE_S, limit) if limit else []
        except StoreUnavailable as error:
            log.error("nothing is tidied: %s", error.detail)  # noqa: TRY400 - the sentence says all
            return []

    def _has_to_look(self, book: JobRetentionState) -> bool:
        """Whether there may be something to do. A store of which nobody tells anything is looked at now and then."""
        looked, now = book.looked, self._clock.now()
        if looked is None or looked.seq != book.saves.seq or book.saves.ended_at is not None:
            return True
        is_ripe = looked.again_at is not None and looked.again_at <= now
        is_long_ago = now - looked.at >= timedelta(seconds=self._manners.idle_s)
        return is_ripe or is_long_ago or self._journal.read(book.job_id).trains

    def _visit(self, book: JobRetentionState) -> datetime | None:
        """When to come again; None: never. If the time was over before all was done, the book has no look."""
        began_at, seq = self._clock.now(), book.saves.seq
        depot = self._open_depot(book.store, book.job_id, book.envs)
        budget = DeletionBudget(time.monotonic() + BUDGET_S, self._stopped)
        remover = Deleter(
            book=book, depot=depot, journal=self._journal, clock=self._clock, budget=budget
        )
        stock = scan_store(depot, book.saves, book.keep, book.known)
        self._strike_out(book, remover, stock)
        is_restoring = book.saves.is_restoring
        plan = decide(stock.inventory, book.keep, self._manners.grace, is_restoring=is_restoring)
        _refuse_unread(depot, stock, plan, book.known)
        is_through = remover.carry_out(plan, stock)
        old = stock.inventory.at - self._manners.grace.uploads
        is_through &= remover.clear([stray.key for stray in stock.strays if stray.at <= old])
        # The plan's time is by the store's clock.
        again_at = began_at + (plan.again_at - stock.inventory.at) if plan.again_at else None
        book.looked = StoreScan(began_at, seq, again_at) if is_through else None
        return self._due_at(book, again_at) if is_through else self._clock.now()

    def _strike_out(self, book: JobRetentionState, remover: Deleter, stock: StoreInventory) -> None:
        """Write down which checkpoints are not there any more, whoever has removed them.

        Raises:
            DepotRefused: none of them is there, as if this were another store than that of the nodes.
        """
        old = self._clock.now() - self._manners.grace.commits
        listed = {commit.name for commit in stock.inventory.commits}
        told = {
            name: save
            for save in book.saves.there()
            if save.at <= old and (name := CheckpointName.parse(save.name or ""))
        }
        missed = [name for name in told if name not in listed]
        if told and len(missed) == len(told) and not listed:
            raise DepotRefused(
                f"none of the {len(told)} checkpoints that were reported is there; it is not the store that the nodes write to"
            )
        gone = [name for name in missed[:MOST_MISSED] if not remover.depot.has(name.commit_key)]
        if gone:
            sizes = {name: told[name].size_bytes or 0 for name in gone}
            remover.note(sizes, Removal.FOUND_GONE)

    def _due_at(self, book: JobRetentionState, again_at: datetime | None) -> datetime | None:
        soon, ended_at = self._in(self._manners.every_s), book.saves.ended_at
        if ended_at is None:
            return soon
        if again_at:
            return max(again_at, soon)
        last = ended_at + self._manners.grace.commits
        return last if self._clock.now() < last else None

    def _in_trouble(
        self, turn: RetentionLease, book: JobRetentionState, error: DepotUnreachable | DepotRefused
    ) -> None:
        now = self._clock.now()
        trouble = f"{book.store.rstrip('/')}/{turn.job_id}: {error.detail}"
        before = self._upkeep.of([turn.job_id])[turn.job_id]
        since = before.since or now
        if before.trouble != trouble:
            log.warning("%s is not tidied: %s", turn.job_id, trouble)
        least_s = REFUSED_S if isinstance(error, DepotRefused) else UNREACHABLE_S
        lasted_s = (now - since).total_seconds()
        wait_s = min(max(least_s, lasted_s / 2), LONGEST_WAIT_S)
        is_hopeless = book.saves.ended_at is not None and lasted_s > GIVE_UP_S
        book.looked = None
        self._upkeep.failed(turn, trouble, since, None if is_hopeless else self._in(wait_s))

    def _in(self, seconds: float) -> datetime:
        return self._clock.now() + timedelta(seconds=seconds)


def _refuse_unread(
    depot: CheckpointBucket, stock: StoreInventory, plan: RetentionPlan, known: InventoryCache
) -> None:
    """Look at the formats of the newest checkpoint, and of those that are to go.

    Raises:
        DepotRefused: this version cannot read one of them; so it cannot tell what may go, and nothing does.
    """
    newest = sorted(commit.name for commit in stock.inventory.commits)[-1:]
    for name in {*newest, *plan.superseded, *plan.off_lineage} - known.readable:
        if why := unread_format_of(depot.read(name.commit_key) or b""):
            raise DepotRefused(f"no checkpoint is removed, as {name} cannot be read: {why}")
        known.readable.add(name)


async def _one_of(under_way: Mapping[str, asyncio.Future[None]], within_s: float) -> None:
    """Return when a visit is over, or the time is."""
    if under_way:
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait(under_way.values(), timeout=within_s, return_when=first)
    else:
        await asyncio.sleep(within_s)


def _forget(
    under_way: dict[str, asyncio.Future[None]], job_id: str, visit: asyncio.Future[None]
) -> None:
    del under_way[job_id]
    if not visit.cancelled() and (error := visit.exception()):
        log.error("a bug while %s was tidied; its lease brings it back", job_id, exc_info=error)
