"""Relay: writes undelivered reports to the checkpoint store during an outage of the service.

It has its own thread, so that a hung store does not delay deliveries, a hung service does not delay the relay, and neither
delays training. The service imports a report that arrives on both ways once, by its number.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.protocol.checkpoint_keys import INBOX
from holdfast_worker.protocol.report_archive import (
    MAX_ARCHIVE_BYTES,
    ArchiveKey,
    ReportArchive,
    sender_of,
)
from holdfast_worker.protocol.reports import Report
from holdfast_worker.protocol.spool_segments import START, SpoolPosition
from holdfast_worker.storage.base import Store, StoreError
from holdfast_worker.telemetry.incarnation import Incarnation
from holdfast_worker.telemetry.spool import (
    BatchLimit,
    read_spool,
    spool_file,
    spooled_attempts,
    trim,
)

QUIET_S: Final = 60.0
"""Time without a response of the service before the relay starts.
A delivery is tried at least every 20 s, so that three have failed. A lower value sends all workers to the store at each restart
of the service; a higher value shows reports later."""
RELAY_PAUSE_S: Final = 30.0
"""Pause between writes while the service imports archives.
A lower value adds requests that a bucket charges for; a higher value shows reports later."""
MAX_PAUSE_S: Final = 600.0
"""Maximum pause between writes while the service imports nothing.
The pause doubles up to it. A lower value reaches the limit of archives sooner; a higher value loses more of the last minutes of
a node that is preempted without notice."""
MAX_ARCHIVES: Final = 200
"""Archives of a job that the service has not imported.
A lower value is reached within a day; a higher value costs storage and list requests."""
FINAL_ARCHIVES: Final = 20
"""Additional archives for the last reports of an attempt, which also fit at the limit."""
SENDER_HEAD_START_S: Final = 2.0
"""Time for the delivery after the ranks have exited, if the service has responded recently.
A lower value relays reports that are being delivered; a higher value takes time from the relay."""
REWRITE_S: Final = 900.0
"""Age at which an archive that is still there is written again unchanged.
It may be damaged. A lower value writes needlessly; a higher value delays the archives after it."""
POLL_S: Final = 0.5
"""Interval of checks.
A lower value wakes an idle machine; a higher value delays the last reports."""

ARCHIVE_LIMIT: Final = BatchLimit(max_reports=20_000, max_bytes=MAX_ARCHIVE_BYTES - 1024)
"""Limits of the reports in one archive, without its first line."""


@dataclass
class DeliveryState:
    """State of the delivery to the service; written only by `ReportSender`."""

    answered_s: float = field(default_factory=time.monotonic)
    """Time of the last response on the monotonic clock; initially the start."""
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Highest acknowledged report number, by attempt."""
    is_refused: bool = False
    """Whether the service rejects reports of this job."""
    finished: threading.Event = field(default_factory=threading.Event)
    """Set when the delivery has ended."""


class StoreRelay:
    """A thread that writes spooled reports to the store during an outage and at the end."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        directory: Path,
        attempt: int,
        incarnation: Incarnation | None = None,
        *,
        quiet_s: float = QUIET_S,
        pause_s: float = RELAY_PAUSE_S,
        replace_s: float = REWRITE_S,
    ) -> None:
        """`open_store` is called at the first write, as its imports are large.

        `incarnation` is the sender; None: the
        launcher numbers the attempts."""
        self._open_store = open_store
        self._directory = directory
        self._attempt = attempt
        self._incarnation = incarnation
        self._quiet_s = quiet_s
        self._least_pause_s = self._pause_s = pause_s
        self._rewrite_s = replace_s
        self._store: Store | None = None
        self._written = dict[int, SpoolPosition]()
        """By attempt: the position after the last relayed report."""
        self._unacknowledged = dict[int, list[ArchiveKey]]()
        """By attempt: written archives that the service has not imported yet, in order."""
        self._acknowledged = dict[int, int]()
        """By attempt: number of the last report whose archive the service has imported and deleted."""
        self._oldest: tuple[ArchiveKey, float] | None = None
        """The oldest archive in the store, and since when it is the oldest.
        None without archives at the last check."""
        self._damaged = set[int]()
        self._logged_problem = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-relay", daemon=True)
        self.delivery = DeliveryState()
        """State of the delivery to the service."""

    def start(self) -> None:
        """Start to watch the delivery."""
        self._thread.start()

    def close(self) -> None:
        """Request the relay of undelivered reports; returns at once."""
        self._closing.set()

    def join(self, within_s: float) -> None:
        """Wait until all reports are relayed, at most `within_s`."""
        self._thread.join(within_s)

    def _run(self) -> None:
        next_s = 0.0
        while not self._closing.wait(POLL_S):
            if self._is_silent() and time.monotonic() >= next_s:
                self._write_pending(MAX_ARCHIVES)
                next_s = time.monotonic() + self._pause_s
        if not self._is_silent():
            self.delivery.finished.wait(SENDER_HEAD_START_S)
        self._write_pending(MAX_ARCHIVES + FINAL_ARCHIVES)

    def _is_silent(self) -> bool:
        return time.monotonic() - self.delivery.answered_s >= self._quiet_s

    def _write_pending(self, most: int) -> None:
        """Write undelivered reports to the store, up to `most` archives; a problem is logged once."""
        if self.delivery.is_refused:
            return
        try:
            if not any(self._next_batch(attempt) for attempt in self._attempts()):
                return
            self._store = self._store or self._open_store()
            stored = sorted(
                filter(None, map(ArchiveKey.of_key, self._store.list(INBOX))), key=_age_key
            )
            self._trim_acknowledged(stored)
            self._check_progress(self._store, stored)
            room = most - len(stored)
            for attempt in self._attempts():
                while room > 0 and (some := self._next_batch(attempt)):
                    self._write(self._store, attempt, some)
                    room -= 1
            problem = "" if room > 0 else f"{most} report archives wait in the checkpoint store"
        except (StoreError, OSError, ValueError) as error:
            problem = f"reports cannot be relayed through the checkpoint store: {error}"
        if problem and problem != self._logged_problem:
            log_info(f"{problem}; further reports stay on this node")
        self._logged_problem = problem

    def _attempts(self) -> list[int]:
        """Attempts with a spool here, oldest first; only the own one if attempts are not numbered."""
        if self._incarnation:
            return [self._attempt]
        return [a for a in spooled_attempts(self._directory) if a <= self._attempt]

    def _trim_acknowledged(self, stored: list[ArchiveKey]) -> None:
        """Remove reports from the spools whose archives the service has imported and deleted."""
        for attempt, written in self._unacknowledged.items():
            while written and written[0] not in stored:
                self._acknowledged[attempt] = written.pop(0).last
        imported = {
            attempt: max(n, self.delivery.acknowledged.get(attempt, 0))
            for attempt, n in self._acknowledged.items()
        }
        trim(self._directory, {**self.delivery.acknowledged, **imported})

    def _next_batch(self, attempt: int) -> list[tuple[Report, SpoolPosition]]:
        """The next reports that were neither delivered nor relayed, each with the position after it."""
        start = self._written.get(attempt, START)
        if (acknowledged := self.delivery.acknowledged.get(attempt, 0)) > start.n:
            start = SpoolPosition(acknowledged)
        return list(ARCHIVE_LIMIT.first_batch(self._lines(attempt, start)))

    def _lines(self, attempt: int, start: SpoolPosition) -> Iterator[tuple[Report, SpoolPosition]]:
        """The reports of a spool after a position, up to a damaged line, which is logged once."""
        try:
            yield from read_spool(spool_file(self._directory, attempt), start)
        except ValueError as damage:
            if attempt not in self._damaged:
                log_info(
                    f"the spool of attempt {attempt} is damaged, and its further reports are not relayed: {damage}"
                )
            self._damaged.add(attempt)

    def _write(self, store: Store, attempt: int, some: list[tuple[Report, SpoolPosition]]) -> None:
        archive = self._archive(attempt, [report for report, _ in some])
        store.put(archive.key.path, archive.dump())
        self._written[attempt] = some[-1][1]
        self._unacknowledged.setdefault(attempt, []).append(archive.key)

    def _archive(self, attempt: int, reports: list[Report]) -> ReportArchive:
        if self._incarnation is None:
            return ReportArchive.from_reports(sender_of(attempt), None, reports)
        found = self._incarnation.load_offset()
        offset = (found.attempt, found.before) if found else None
        return ReportArchive.from_reports(self._incarnation.name, offset, reports)

    def _check_progress(self, store: Store, stored: list[ArchiveKey]) -> None:
        """Increase the pause while the service imports nothing, and write old archives again."""
        oldest = stored[0] if stored else None
        if self._oldest is None or oldest != self._oldest[0]:
            self._pause_s = self._least_pause_s
            self._oldest = (oldest, time.monotonic()) if oldest else None
            return
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        if oldest and time.monotonic() - self._oldest[1] > self._rewrite_s:
            again = list(self._spooled(oldest))
            if [report.n for report in again] == [*range(oldest.first, oldest.last + 1)]:
                attempt = self._attempt if oldest.attempt is None else oldest.attempt
                store.put(oldest.path, self._archive(attempt, again).dump())
            self._oldest = (oldest, time.monotonic())

    def _spooled(self, key: ArchiveKey) -> Iterator[Report]:
        """The reports of an own archive from the spool; empty for archives of other senders."""
        own = self._incarnation.name if self._incarnation else key.sender
        if key.sender != own or (self._incarnation is None and key.attempt is None):
            return
        attempt = self._attempt if key.attempt is None else key.attempt
        for report, _ in self._lines(attempt, SpoolPosition(key.first - 1)):
            if report.n > key.last:
                return
            if report.n >= key.first:
                yield report


def _age_key(key: ArchiveKey) -> tuple[int, str, int]:
    """Sort key that orders archives by attempt, sender and report number."""
    return (key.attempt or 0, key.sender, key.first)
