"""The intake: reports of many workers, gathered for a moment and written in one transaction.

A commit that survives a power cut costs the same for one batch and for a hundred, so those that come while another is
written share the next. Whoever handed one in is answered after its commit, and never before.
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
from holdfast.store.report_ingest import Accepted, Batch, BatchResult
from holdfast.telemetry import ProcessMetrics

GATHER_S: Final = 0.005
"""How long the first of a group waits for others, in all. Smaller: more commits. Bigger: every answer comes so much later."""
SWITCH_S: Final = 0.0005
"""After so long a busy thread lets another go on that waits. Bigger: the intake waits for the event loop after each word with
the database, and every answer with it; Python's own 5 ms makes that a second. Smaller: more of a core goes into taking turns."""
LARGEST_GROUP: Final = 2000
"""Reports that are written in one transaction, unless a single batch has more. Smaller: more commits. Bigger: one of them
holds up all other writers, such as the reconciler, for longer."""
MOST_WAITING: Final = 100_000
"""Reports that may wait. Smaller: a burst after an outage is told to come again though there was room. Bigger: it takes
more memory, about a kilobyte for each."""


class ReportSink(Protocol):
    """Takes batches: the journal."""

    def ingest_reports(self, batches: list[Batch]) -> list[BatchResult]:
        """What became of each batch, once that is durable."""
        ...


Outcome: TypeAlias = BatchResult | BaseException
"""What a batch is answered with."""


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A batch that waits, and who is to be answered where."""

    batch: Batch
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Accepted]
    came_s: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        """How much it counts; a delivery of nothing asks its question, too."""
        return max(1, len(self.batch.reports))


class ReportGroupCommit:
    """Batches on their way into the journal, through one thread that begins with the first of them."""

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

    async def take(self, batch: Batch) -> Accepted:
        """What became of a batch, once that is durable. Those of one attempt are taken in the order of the calls.

        Raises:
            HoldfastError: one of those of `Journal.absorb`; nothing of it was taken.
            Unavailable: too much waits already.
        """
        loop = asyncio.get_running_loop()
        guest = _PendingBatch(batch, loop, loop.create_future())
        with self._lock:
            if self._waiting and self._waiting_reports + guest.size > MOST_WAITING:
                raise Unavailable(
                    f"{self._waiting_reports} reports wait to be written, and there is no room for more; send them again"
                )
            self._waiting.append(guest)
            self._waiting_reports += guest.size
            self._call()
            self._instruments.waits(self._waiting_reports)
        begun_s, outcome = time.perf_counter(), "failed"
        try:
            taken = await guest.answer
            outcome = "taken"
        except asyncio.CancelledError:
            outcome = ""  # Whoever waited has gone; it is written all the same.
            raise
        except HoldfastError as error:
            outcome = "failed" if isinstance(error, Unavailable) else "refused"
            raise
        finally:
            if outcome:
                self._instruments.delivered(outcome, time.perf_counter() - begun_s)
        return taken

    def _call(self) -> None:
        """Let the next group be written, unless that is to happen anyway."""
        if self._is_called or not self._waiting:
            return
        self._is_called = True
        self._writer.submit(self._write_group).add_done_callback(self._group_written)

    def _write_group(self) -> list[BatchResult]:
        with self._lock:
            first = self._waiting[0]
        # Who came while another group was written has waited already.
        time.sleep(max(0.0, first.came_s + self._gather_s - time.monotonic()))
        with self._lock:
            self._group = self._next_group()
            self._is_called = False
            self._call()
            self._instruments.waits(self._waiting_reports)
        return self._absorbed(self._group)

    def _absorbed(self, group: Sequence[_PendingBatch]) -> list[BatchResult]:
        begun_s = time.perf_counter()
        try:
            return self._journal.ingest_reports([guest.batch for guest in group])
        finally:
            reports = sum(len(guest.batch.reports) for guest in group)
            self._instruments.committed(reports, time.perf_counter() - begun_s)

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
            # One of them cannot be written, and took the others with it. None pays for the fault of another.
            for guest in group:
                self._write_alone(guest)

    def _write_alone(self, guest: _PendingBatch) -> None:
        def written(done: Future[list[BatchResult]]) -> None:
            error = done.exception()
            _reply([guest], done.result() if error is None else [error])

        self._writer.submit(self._absorbed, [guest]).add_done_callback(written)


def _reply(group: Sequence[_PendingBatch], outcomes: Sequence[Outcome]) -> None:
    """Answer a whole group at once: to wake an event loop for each of them costs as much as to write them."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Accepted], Outcome]]] = {}
    for guest, outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(guest.loop, []).append((guest.answer, outcome))
    for loop, answers in by_loop.items():
        with suppress(RuntimeError):  # It has ended, and all who waited in it.
            loop.call_soon_threadsafe(_deliver, answers)


def _deliver(answers: Sequence[tuple[asyncio.Future[Accepted], Outcome]]) -> None:
    for answer, outcome in answers:
        if answer.done():
            continue  # Whoever waited has gone. The worker asks again, and is told where to go on.
        if isinstance(outcome, BaseException):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
