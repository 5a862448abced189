"""Group commit: writes reports of many workers in one transaction.

A durable commit costs the same for one batch and for a hundred, so batches that arrive during a commit share the
next one. A sender receives its response only after the commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from holdfast.errors import HoldfastError, StoreUnavailable, Unavailable
from holdfast.store.report_ingest import Accepted, BatchResult, ReportBatch
from holdfast.telemetry import ProcessMetrics

GATHER_S: Final = 0.005
"""Seconds for which the first batch of a group waits for others. A lower value adds commits;
a higher value delays every response."""
SWITCH_S: Final = 0.0005
"""Seconds after which a busy thread yields. With a higher value, each database call waits
for the event loop; Python's own 5 ms adds up to a second. A lower value spends more CPU
on switches."""
LARGEST_GROUP: Final = 2000
"""Reports per transaction, unless a single batch has more. A lower value adds commits; a
higher value blocks other writers, such as the reconciler, for longer."""
MOST_WAITING: Final = 100_000
"""Maximum of waiting reports. A lower value rejects bursts after an outage; a higher value
uses more memory, about a kilobyte each."""


class ReportSink(Protocol):
    """Records batches: the journal."""

    def ingest_reports(self, batches: list[ReportBatch]) -> list[BatchResult]:
        """The result of each batch, once it is durable."""
        ...


Outcome: TypeAlias = BatchResult | BaseException
"""The response to a batch."""


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A waiting batch and the future of its response."""

    batch: ReportBatch
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Accepted]
    received_s: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        """Its weight; an empty delivery counts as one."""
        return max(1, len(self.batch.reports))


class ReportGroupCommit:
    """Queue of batches for the journal, written by one thread."""

    def __init__(
        self,
        journal: ReportSink,
        instruments: ProcessMetrics | None = None,
        gather_s: float = GATHER_S,
    ) -> None:
        self._journal = journal
        self._instruments = instruments or ProcessMetrics()
        self._gather_s = gather_s
        self._lock = threading.Lock()
        self._waiting: deque[_PendingBatch] = deque()
        self._waiting_reports = 0
        self._is_called = False
        self._group: list[_PendingBatch] = []
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="intake")

    async def submit(self, batch: ReportBatch) -> Accepted:
        """Record a batch and return its durable result. Batches of an attempt keep their order.

        Raises:
            HoldfastError: as in `Journal.ingest`; nothing of it was recorded.
            Unavailable: too many reports are waiting.
        """
        loop = asyncio.get_running_loop()
        pending = _PendingBatch(batch, loop, loop.create_future())
        with self._lock:
            if self._waiting and self._waiting_reports + pending.size > MOST_WAITING:
                raise Unavailable(
                    f"{self._waiting_reports} reports are waiting to be written, which is the maximum; send them again"
                )
            self._waiting.append(pending)
            self._waiting_reports += pending.size
            self._call()
            self._instruments.set_waiting(self._waiting_reports)
        started_s, outcome = time.perf_counter(), "failed"
        try:
            taken = await pending.answer
            outcome = "taken"
        except asyncio.CancelledError:
            outcome = ""  # The client disconnected; the batch is written anyway.
            raise
        except HoldfastError as error:
            outcome = "failed" if isinstance(error, Unavailable) else "refused"
            raise
        finally:
            if outcome:
                self._instruments.observe_delivery(outcome, time.perf_counter() - started_s)
        return taken

    def _call(self) -> None:
        """Schedule the next group, unless it is scheduled already."""
        if self._is_called or not self._waiting:
            return
        self._is_called = True
        self._writer.submit(self._write_group).add_done_callback(self._group_written)

    def _write_group(self) -> list[BatchResult]:
        with self._lock:
            first = self._waiting[0]
        # Batches that arrived during a commit have waited already.
        time.sleep(max(0.0, first.received_s + self._gather_s - time.monotonic()))
        with self._lock:
            self._group = self._next_group()
            self._is_called = False
            self._call()
            self._instruments.set_waiting(self._waiting_reports)
        return self._ingest(self._group)

    def _ingest(self, group: Sequence[_PendingBatch]) -> list[BatchResult]:
        started_s = time.perf_counter()
        try:
            return self._journal.ingest_reports([pending.batch for pending in group])
        finally:
            reports = sum(len(pending.batch.reports) for pending in group)
            self._instruments.observe_commit(reports, time.perf_counter() - started_s)

    def _next_group(self) -> list[_PendingBatch]:
        group: list[_PendingBatch] = []
        room = LARGEST_GROUP
        while self._waiting and (not group or self._waiting[0].size <= room):
            group.append(self._waiting.popleft())
            room -= group[-1].size
            self._waiting_reports -= group[-1].size
        return group

    def _group_written(self, done: Future[list[BatchResult]]) -> None:
        # In the thread that wrote, and before it writes the next group.
        group, self._group = self._group, []
        error = done.exception()
        if error is None:
            _reply(group, done.result())
        elif len(group) == 1 or isinstance(error, StoreUnavailable):
            _reply(group, [error] * len(group))
        else:
            # One batch failed the whole group: write each batch separately.
            for pending in group:
                self._write_alone(pending)

    def _write_alone(self, pending: _PendingBatch) -> None:
        def written(done: Future[list[BatchResult]]) -> None:
            error = done.exception()
            _reply([pending], done.result() if error is None else [error])

        self._writer.submit(self._ingest, [pending]).add_done_callback(written)


def _reply(group: Sequence[_PendingBatch], outcomes: Sequence[Outcome]) -> None:
    """Respond to a whole group at once.

    Waking an event loop for each batch costs as much as the writes.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Accepted], Outcome]]] = {}
    for pending, outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(pending.loop, []).append((pending.answer, outcome))
    for loop, answers in by_loop.items():
        with suppress(RuntimeError):  # The event loop has ended.
            loop.call_soon_threadsafe(_deliver, answers)


def _deliver(answers: Sequence[tuple[asyncio.Future[Accepted], Outcome]]) -> None:
    for answer, outcome in answers:
        if answer.done():
            continue  # The client disconnected. The worker retries and receives the next expected report number.
        if isinstance(outcome, BaseException):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
