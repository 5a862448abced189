"""The checkpoint collector: deletes old checkpoints store by store and records failures.

Every visit starts from scratch and may be interrupted anywhere. Stores are slow, so each visit runs in a thread; a
few run at once.
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
from holdfast_worker.protocol.commit_summary import unsupported_format_of

from holdfast.background.retention.deletion import Deleter, DeletionBudget
from holdfast.background.retention.inventory import (
    InventoryCache,
    JobRetentionState,
    StoreInventory,
    StoreScan,
    scan_store,
)
from holdfast.domain.checkpoints.retention import GracePeriods, RetentionPlan, decide
from holdfast.domain.events import Removal
from holdfast.errors import (
    CheckpointStoreRefused,
    CheckpointStoreUnreachable,
    NotFound,
    StoreUnavailable,
)
from holdfast.ports import CheckpointBucket, Clock, OpenBucket
from holdfast.store.journal import Journal
from holdfast.store.retention_queue import RetentionLease, RetentionQueue

log = logging.getLogger(__name__)

CONCURRENT_JOBS: Final = 4
"""Visits at once. A lower value lets a hanging store block others; a higher value uses
connections and memory for work without urgency."""
BUDGET_S: Final = 120.0
"""Seconds per visit. A lower value scans a store with much to delete repeatedly; a higher
value makes other jobs wait."""
LEASE_S: Final = 600.0
"""Seconds of the lease of a visit. A value below its duration makes two replicas delete the
same; a higher value delays the jobs of a dead replica."""
POLL_S: Final = 1.0
"""Seconds between two searches for due jobs."""
STATE_CACHE_SIZE: Final = 1024
"""Jobs whose state is cached, so that their events are not read again for each visit. A
higher value uses memory."""
MAX_LOOKUPS: Final = 100
"""Checkpoints requested one by one in a visit because the listing lacks them."""

UNREACHABLE_S: Final = 60.0
REFUSED_S: Final = 600.0
"""Minimum seconds before a retry after a store did not respond, or refused. The wait is half
as long as the failure has lasted, and at most an hour. A lower value adds noise; a higher
value pays for superfluous checkpoints."""
MAX_WAIT_S: Final = 3600.0
FAILURE_DEADLINE_S: Final = 7 * 86_400.0
"""Seconds of failures with the store of an ended job after which retries end. A lower value
ends them over a holiday; a higher value continues after a bucket was deleted on purpose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionSettings:
    """How often jobs are visited, and how long superfluous objects are kept."""

    every_s: float = 60.0
    """Seconds between two visits of a job. Its store is scanned if it trains or has new events."""
    idle_s: float = 600.0
    """Maximum seconds between two scans of the store of a job without new events."""
    grace: GracePeriods = field(
        default_factory=lambda: GracePeriods(
            commits=timedelta(minutes=5), uploads=timedelta(days=1)
        )
    )


class CheckpointCollector:
    """Deletes old checkpoints of all jobs for which this is the task of the service."""

    def __init__(
        self,
        *,
        journal: Journal,
        queue: RetentionQueue,
        open_bucket: OpenBucket,
        clock: Clock,
        settings: RetentionSettings = RetentionSettings(),
    ) -> None:
        self._journal = journal
        self._queue = queue
        self._open_bucket = open_bucket
        self._clock = clock
        self._settings = settings
        self._state = functools.lru_cache(STATE_CACHE_SIZE)(
            lambda job: JobRetentionState.load(job, journal)
        )
        self._stopped = threading.Event()

    async def run(self) -> None:
        """Visit due jobs until cancelled.

        An unexpected error in one visit does not stop the others.
        """
        self._retry_failed()
        under_way: dict[str, asyncio.Future[None]] = {}
        loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(CONCURRENT_JOBS, thread_name_prefix="retention")
        try:
            while True:
                for lease in self._claim(CONCURRENT_JOBS - len(under_way)):
                    if lease.job_id in under_way:
                        self._visit_later(lease)
                        continue
                    visit = loop.run_in_executor(threads, self.collect, lease)
                    under_way[lease.job_id] = visit
                    visit.add_done_callback(functools.partial(_forget, under_way, lease.job_id))
                await _wait_for_any(under_way, min(POLL_S, self._settings.every_s))
        finally:
            self._stopped.set()
            for visit in [*under_way.values()]:
                visit.cancel()  # Its thread ends at the next deadline check.
            threads.shutdown(wait=False, cancel_futures=True)

    def run_once(self) -> int:
        """Visit all due jobs, one after the other, and return their number."""
        leases = self._queue.claim(self._clock.now(), LEASE_S, limit=1000)
        for lease in leases:
            self.collect(lease)
        return len(leases)

    def collect(self, lease: RetentionLease) -> None:
        """Visit a job and schedule its next visit."""
        try:
            state = self._state(lease.job_id)
            state.catch_up(self._journal)
            if not self._needs_scan(state):
                self._queue.postpone(lease, self._after(self._settings.every_s))
                return
            try:
                due_at = self._collect(state)
            except (CheckpointStoreUnreachable, CheckpointStoreRefused) as error:
                self._record_failure(lease, state, error)
            else:
                if state.last_scan:
                    self._queue.mark_done(lease, self._clock.now(), due_at)
                else:
                    self._queue.postpone(lease, self._clock.now())
        except NotFound:
            log.info("job %s was removed during checkpoint retention", lease.job_id)
        except StoreUnavailable as error:
            # The job becomes due again when its lease expires.
            log.error("checkpoint retention of %s failed: %s", lease.job_id, error.detail)  # noqa: TRY400 - the message is complete

    def _retry_failed(self) -> None:
        """Retry failed stores after a start, since the service may have new credentials."""
        try:
            self._queue.retry(self._clock.now())
        except StoreUnavailable as error:
            log.error("stores are retried later: %s", error.detail)  # noqa: TRY400 - the message is complete

    def _claim(self, limit: int) -> list[RetentionLease]:
        try:
            return self._queue.claim(self._clock.now(), LEASE_S, limit) if limit else []
        except StoreUnavailable as error:
            log.error("checkpoint retention is delayed: %s", error.detail)  # noqa: TRY400 - the message is complete
            return []

    def _visit_later(self, lease: RetentionLease) -> None:
        """Release the lease of a job whose visit is under way.

        The visit has outlasted its own lease, or it has scheduled the next one and is about to end.
        """
        try:
            self._queue.postpone(lease, self._after(self._settings.every_s))
        except StoreUnavailable as error:
            log.error("checkpoint retention of %s is delayed: %s", lease.job_id, error.detail)  # noqa: TRY400 - the message is complete

    def _needs_scan(self, state: JobRetentionState) -> bool:
        """Whether there may be work. The store of a job without new events is scanned at intervals."""
        looked, now = state.last_scan, self._clock.now()
        if looked is None or looked.seq != state.history.seq or state.history.ended_at is not None:
            return True
        is_ripe = looked.again_at is not None and looked.again_at <= now
        is_long_ago = now - looked.at >= timedelta(seconds=self._settings.idle_s)
        return is_ripe or is_long_ago or self._journal.read(state.job_id).is_training

    def _collect(self, state: JobRetentionState) -> datetime | None:
        """Run retention for a job; return the time of the next run, or None.

        Without a scan in the state, the time limit was reached.
        """
        began_at, seq = self._clock.now(), state.history.seq
        bucket = self._open_bucket(state.store, state.job_id, state.envs)
        budget = DeletionBudget(time.monotonic() + BUDGET_S, self._stopped)
        deleter = Deleter(
            state=state, bucket=bucket, journal=self._journal, clock=self._clock, budget=budget
        )
        inventory = scan_store(bucket, state.history, state.policy, state.cache)
        self._record_missing(state, deleter, inventory)
        is_restoring = state.history.is_restoring
        plan = decide(
            inventory.inventory, state.policy, self._settings.grace, is_restoring=is_restoring
        )
        _check_formats(bucket, inventory, plan, state.cache)
        is_complete = deleter.execute(plan, inventory)
        old = inventory.inventory.at - self._settings.grace.uploads
        is_complete &= deleter.delete_objects(
            [item.key for item in inventory.leftovers if item.written_at <= old]
        )
        # The plan's time follows the store's clock.
        again_at = (
            began_at + (plan.next_run_at - inventory.inventory.at) if plan.next_run_at else None
        )
        state.last_scan = StoreScan(began_at, seq, again_at) if is_complete else None
        return self._due_at(state, again_at) if is_complete else self._clock.now()

    def _record_missing(
        self, state: JobRetentionState, deleter: Deleter, inventory: StoreInventory
    ) -> None:
        """Record checkpoints that are missing from the store, whatever deleted them.

        Raises:
            CheckpointStoreRefused: all of them are missing, so this is probably a different store than that of the
                nodes.
        """
        old = self._clock.now() - self._settings.grace.commits
        listed = {commit.name for commit in inventory.inventory.commits}
        reported = {
            name: save
            for save in state.history.stored()
            if save.at <= old and (name := CheckpointName.parse(save.name or ""))
        }
        missed = [name for name in reported if name not in listed]
        if reported and len(missed) == len(reported) and not listed:
            raise CheckpointStoreRefused(
                f"all {len(reported)} reported checkpoints are missing; the nodes write to another store"
            )
        gone = [name for name in missed[:MAX_LOOKUPS] if not deleter.bucket.has(name.commit_key)]
        if gone:
            sizes = {name: reported[name].size_bytes or 0 for name in gone}
            deleter.record_removal(sizes, Removal.FOUND_GONE)

    def _due_at(self, state: JobRetentionState, again_at: datetime | None) -> datetime | None:
        soon, ended_at = self._after(self._settings.every_s), state.history.ended_at
        if ended_at is None:
            return soon
        if again_at:
            return max(again_at, soon)
        last = ended_at + self._settings.grace.commits
        return last if self._clock.now() < last else None

    def _record_failure(
        self,
        lease: RetentionLease,
        state: JobRetentionState,
        error: CheckpointStoreUnreachable | CheckpointStoreRefused,
    ) -> None:
        now = self._clock.now()
        problem = f"{state.store.rstrip('/')}/{lease.job_id}: {error.detail}"
        before = self._queue.statuses([lease.job_id])[lease.job_id]
        since = before.since or now
        if before.error != problem:
            log.warning("checkpoint retention of %s failed: %s", lease.job_id, problem)
        least_s = REFUSED_S if isinstance(error, CheckpointStoreRefused) else UNREACHABLE_S
        lasted_s = (now - since).total_seconds()
        wait_s = min(max(least_s, lasted_s / 2), MAX_WAIT_S)
        is_hopeless = state.history.ended_at is not None and lasted_s > FAILURE_DEADLINE_S
        state.last_scan = None
        self._queue.mark_failed(lease, problem, since, None if is_hopeless else self._after(wait_s))

    def _after(self, seconds: float) -> datetime:
        return self._clock.now() + timedelta(seconds=seconds)


def _check_formats(
    bucket: CheckpointBucket, inventory: StoreInventory, plan: RetentionPlan, known: InventoryCache
) -> None:
    """Check the formats of the newest checkpoint and of those to delete.

    Raises:
        CheckpointStoreRefused: this version cannot read one of them, so it cannot decide what to delete, and deletes
            nothing.
    """
    newest = sorted(commit.name for commit in inventory.inventory.commits)[-1:]
    for name in {*newest, *plan.superseded, *plan.off_lineage} - known.readable:
        if why := unsupported_format_of(bucket.read(name.commit_key) or b""):
            raise CheckpointStoreRefused(
                f"no checkpoint is deleted because {name} cannot be read: {why}"
            )
        known.readable.add(name)


async def _wait_for_any(under_way: Mapping[str, asyncio.Future[None]], within_s: float) -> None:
    """Return when a visit has ended, or after `within_s`."""
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
        log.error(
            "unexpected error in checkpoint retention of %s; it is retried when its lease expires",
            job_id,
            exc_info=error,
        )
