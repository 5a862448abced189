"""Report delivery: sends spooled reports to the service in order, with retries.

Standard library only.

It runs beside the training loop: an outage of the service only delays reports. An attempt without a number is
registered first; until then its reports wait in the spool.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar

from holdfast_worker.clock import now
from holdfast_worker.console import log_info
from holdfast_worker.protocol.reports import MAX_BODY_BYTES, Report
from holdfast_worker.protocol.spool_segments import START, SpoolPosition
from holdfast_worker.run_dir import RunDir
from holdfast_worker.storage.retry import JITTER
from holdfast_worker.telemetry.incarnation import Incarnation, ReportOffset
from holdfast_worker.telemetry.service_client import (
    DeliveryResponse,
    ReportRejected,
    ServiceClient,
    ServiceUnreachable,
    Superseded,
    UnknownIncarnation,
)
from holdfast_worker.telemetry.spool import (
    BatchLimit,
    read_spool,
    spool_file,
    spooled_attempts,
    trim,
)
from holdfast_worker.telemetry.store_relay import DeliveryState, StoreRelay

T = TypeVar("T")

BATCH: Final = BatchLimit(max_reports=200, max_bytes=MAX_BODY_BYTES // 2)
"""Size of one delivery.
More reports make a retry expensive; fewer make a long spool slow. More bytes may exceed the limit of a proxy, such as 1 MiB of
nginx; fewer make a long spool slow."""
POLL_S: Final = 0.5
"""How often the spool is read.
A lower value wakes an idle machine; a higher value delays the dashboard."""
KEEPALIVE_S: Final = 20.0
"""Interval of empty deliveries while there are no reports.
They fetch requests of the service. A lower value adds requests; a higher value delays the request to exit for a rank that
hangs."""
END_INTERVAL_S: Final = 60.0
"""Interval at which the expected end of the job is requested for a tracker.
A lower value has the service estimate more often; a higher value shows an old estimate."""
MAX_BACKOFF_S: Final = 10.0
"""Maximum pause between retries.
A lower value adds load to a service that is down; a higher value delays the recovery."""
FINAL_DELIVERY_S: Final = 5.0
"""Time for deliveries after the ranks have exited.
A lower value leaves more in the spool; a higher value pays for an idle node."""
FINAL_RELAY_S: Final = 20.0
"""Time to relay undelivered reports through the checkpoint store.
It applies if no launcher waits for the exit. A lower value leaves more in the spool; a higher value pays for an idle node."""
FINAL_DELIVERY_UNNUMBERED_S: Final = 30.0
"""Time for deliveries if the spool is lost with the node.
The service first observes the launcher. A lower value loses more reports; a higher value pays for an idle node."""


class ReportSender:
    """A thread that delivers the spools of a job: older attempts first, then the current one."""

    def __init__(
        self,
        client: ServiceClient,
        directory: Path,
        attempt: int,
        incarnation: Incarnation | None = None,
        *,
        keepalive_s: float = KEEPALIVE_S,
        relay: StoreRelay | None = None,
        run_dir: RunDir | None = None,
    ) -> None:
        """`incarnation` registers before it reports; None: the launcher numbers the attempts.

        `relay` takes undelivered reports; None: they wait in the spool only. `run_dir` receives what becomes of a job that stops.
        """
        self._client = client
        self._directory = directory
        self._attempt = attempt
        self._incarnation = incarnation
        self._keepalive_s = keepalive_s
        self._relay = relay
        self._run_dir = run_dir
        self._delivery = relay.delivery if relay else DeliveryState()
        self._gaps = set[int]()
        self._closing = threading.Event()
        self._deadline_s = float("inf")
        self._thread = threading.Thread(target=self._run, name="holdfast-delivery", daemon=True)
        self.leave_by: datetime | None = None
        """Deadline by which the service asks the job to save and exit; None without a request."""
        self.drills = SimpleQueue[tuple[Sequence[int], float]]()
        """Nodes that have to end in a drill, and when by `time.monotonic`; each request once."""
        self._known_drills = set[str]()
        self._asked_end_s = -math.inf
        self.superseded_by: str | None = None
        """The service's message that a different incarnation replaced this one.
        None while this one is the newest."""

    def start(self) -> None:
        """Start to deliver."""
        self._thread.start()
        if self._relay:
            self._relay.start()

    def close(self, within_s: float | None = None) -> None:
        """Deliver the current reports within that time; the rest is relayed or stays in the spool."""
        relay_s = FINAL_RELAY_S if within_s is None else within_s
        if within_s is None:
            within_s = FINAL_DELIVERY_UNNUMBERED_S if self._incarnation else FINAL_DELIVERY_S
        began_s = time.monotonic()
        self._deadline_s = began_s + within_s
        self._closing.set()
        if self._relay:
            self._relay.close()
        self._thread.join(within_s)
        if self._relay:
            self._relay.join(max(0.0, began_s + relay_s - time.monotonic()))

    def _run(self) -> None:
        try:
            self._deliver_spools()
        except Superseded as answer:
            self._delivery.is_refused = True
            self.superseded_by = str(answer)
        finally:
            self._delivery.finished.set()

    def _deliver_spools(self) -> None:
        """Deliver all spools; start again after an error of the file system, until the deadline."""
        logged_problem = ""
        while True:
            try:
                if self._incarnation:
                    self._deliver_unnumbered(self._incarnation)
                else:
                    self._deliver_numbered()
            except OSError as error:
                if str(error) != logged_problem:
                    logged_problem = str(error)
                    log_info(f"the spool cannot be read; trying again: {error}")
            else:
                return
            if not self._has_time_after(MAX_BACKOFF_S):
                return

    def _deliver_numbered(self) -> None:
        older = [a for a in spooled_attempts(self._directory) if a < self._attempt]
        for attempt in [*older, self._attempt]:
            self._deliver_spool(attempt, ReportOffset(attempt, 0))

    def _deliver_unnumbered(self, incarnation: Incarnation) -> None:
        while offset := self._register(incarnation):
            try:
                self._deliver_spool(self._attempt, offset)
            except UnknownIncarnation as answer:
                log_info(f"the service does not know this attempt; registering again: {answer}")
            else:
                return
            if not self._has_time_after(POLL_S):
                return

    def _register(self, incarnation: Incarnation) -> ReportOffset | None:
        """The offset of this incarnation's reports; None after the deadline or a rejection."""
        try:
            registration = self._retry(self._client.register)
        except ReportRejected as answer:
            log_info(f"the service rejected the registration; reports are not delivered: {answer}")
            self._delivery.is_refused = True
            return None
        if not registration:
            return None
        offset = incarnation.load_offset()
        if not offset or offset.attempt != registration.attempt:
            offset = ReportOffset(registration.attempt, registration.before)
            incarnation.save_offset(offset)
        return offset

    def _deliver_spool(self, attempt: int, offset: ReportOffset) -> None:
        """Deliver a spool until it is complete, or until the deadline."""
        try:
            self._deliver_file(attempt, offset)
        except ReportRejected as answer:
            log_info(f"the service rejected the reports of attempt {offset.attempt}: {answer}")
            self._delivery.is_refused = attempt == self._attempt
        except ValueError as damage:
            log_info(f"the spool of attempt {offset.attempt} cannot be read: {damage}")

    def _deliver_file(self, attempt: int, offset: ReportOffset) -> None:
        file = spool_file(self._directory, attempt)
        next_number = self._deliver_batch(offset, [])
        responded_s = time.monotonic()
        start = START
        trimmed = -1 if attempt == self._attempt else start.segment
        while next_number is not None:
            if 0 < next_number <= offset.before:
                # The service lost reports of earlier incarnations for good: ours follow those that it has.
                offset = self._save_offset(offset, next_number - 1)
            self._delivery.acknowledged[attempt] = max(0, next_number - 1 - offset.before)
            # Once for each acknowledged segment, and at the first response for the own attempt.
            if start.segment != trimmed:
                trim(self._directory, self._delivery.acknowledged)
                trimmed = start.segment
            # Set before the read, which then sees all reports written until here.
            is_complete = attempt != self._attempt or self._closing.is_set()
            waiting = (
                (r, position)
                for r, position in _numbered(file, start, offset)
                if r.n >= next_number
            )
            batch = list(BATCH.first_batch(waiting))
            if not batch and is_complete:
                return
            if not batch and time.monotonic() - responded_s < self._keepalive_s:
                self._closing.wait(POLL_S)
                continue
            expected = batch[-1][0].n + 1 if batch else next_number
            oldest = batch[0][0].n if batch and batch[0][0].n > next_number else None
            before, next_number = (
                next_number,
                self._deliver_batch(offset, [r for r, _ in batch], oldest),
            )
            responded_s = time.monotonic()
            if oldest and next_number == before:
                self._log_gap(offset.attempt, before, oldest)
                if is_complete:
                    return
                self._closing.wait(self._keepalive_s)
            # A service that lost reports requests them again, from the oldest that is left.
            if next_number != expected:
                start = START
            elif batch:
                start = batch[-1][1]

    def _save_offset(self, offset: ReportOffset, before: int) -> ReportOffset:
        changed = ReportOffset(offset.attempt, before)
        if self._incarnation:
            self._incarnation.save_offset(changed)
        return changed

    def _log_gap(self, attempt: int, next_number: int, oldest: int) -> None:
        if attempt not in self._gaps:
            log_info(
                f"the service expects report {next_number} of attempt {attempt}, but the oldest one kept here is {oldest}: "
                "upgrade the service"
            )
        self._gaps.add(attempt)

    def _deliver_batch(
        self, offset: ReportOffset, reports: list[Report], oldest: int | None = None
    ) -> int | None:
        """Deliver reports and return the next expected number; None after the deadline."""
        asks_end = self._is_end_due(offset.attempt)
        answer: DeliveryResponse | None = self._retry(
            lambda: self._client.deliver(offset.attempt, reports, oldest, asks_end=asks_end)
        )
        if not answer:
            return None
        if self._run_dir and asks_end:
            self._asked_end_s = time.monotonic()
            end_s = {name: time.monotonic() + s for name, s in answer.remaining_s.items()}
            with suppress(OSError):  # Only trackers need it.
                self._run_dir.record_end(end_s)
        self._delivery.answered_s = time.monotonic()
        # A launcher that numbers attempts also sends them notices with a deadline, and expects none to exit before that.
        if answer.leave_within_s is not None and self._incarnation and not self.leave_by:
            self.leave_by = now() + timedelta(seconds=answer.leave_within_s)
        if answer.stop and self._run_dir:
            with suppress(OSError):  # Only trackers need it.
                self._run_dir.record_stop(answer.stop)
        for drill in answer.drills:
            if drill.requested_at not in self._known_drills:
                self._known_drills.add(drill.requested_at)
                self.drills.put((drill.nodes, time.monotonic() + drill.within_s))
        return answer.next

    def _is_end_due(self, attempt: int) -> bool:
        """Whether a tracker wants to know the expected end of the job, and it was not read lately."""
        return (
            self._run_dir is not None
            and attempt == self._attempt
            and time.monotonic() - self._asked_end_s > END_INTERVAL_S
            and self._run_dir.wants_end()
        )

    def _retry(self, request: Callable[[], T]) -> T | None:
        """The response to a request, with retries; None after the deadline."""
        for tries in itertools.count():
            try:
                return request()
            except ServiceUnreachable:
                wait_s = JITTER.uniform(0.5, 1.0) * min(MAX_BACKOFF_S, 0.25 * 2 ** min(tries, 10))
            if not self._has_time_after(wait_s):
                return None
        raise AssertionError("unreachable")

    def _has_time_after(self, wait_s: float) -> bool:
        """Wait; whether the deadline allows a retry after that."""
        if self._closing.is_set():
            # Shorter pauses at the end: only seconds may be left.
            time.sleep(min(wait_s, 0.5))
        else:
            self._closing.wait(wait_s)
        return time.monotonic() <= self._deadline_s


def _numbered(
    file: Path, start: SpoolPosition, offset: ReportOffset
) -> Iterator[tuple[Report, SpoolPosition]]:
    """The reports of a spool after a position, numbered as in the service."""
    for report, position in read_spool(file, start):
        yield replace(report, attempt=offset.attempt, n=report.n + offset.before), position
