"""The postbox: where the service does not answer, what it has not taken is left for it in the checkpoint store.

It has a thread of its own: a store that hangs holds up no courier, a service that hangs no postbox, and neither of them the
training. What reaches the service on both ways is taken once, by its number.
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
    LONGEST_BYTES,
    ArchiveKey,
    ReportArchive,
    sender_of,
)
from holdfast_worker.protocol.reports import Report
from holdfast_worker.protocol.spool_segments import START, Place
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
"""Without an answer of the service before anything is posted. Its courier asks at least every 20 s, so that three questions
went unanswered. Longer: people see later what a worker does that never reaches the service. Shorter: each start of the service
anew sends all its workers to the store."""
PAUSE_S: Final = 30.0
"""Between two posts, while they are taken. Longer delays what people see, shorter is requests that a bucket charges for."""
LONGEST_PAUSE_S: Final = 600.0
"""The same, while nothing is taken: the pause doubles up to this. Longer: what a node says in its last minutes is lost with it
where it is taken without notice. Shorter: the box is full sooner."""
MOST_PARCELS: Final = 200
"""Of a job, that nobody has taken yet. More is listed and kept for nobody; fewer is a box that is full within a day."""
LAST_PARCELS: Final = 20
"""On top of these for the last words of a placement, for which a full box has room as well."""
HEAD_START_S: Final = 2.0
"""For the courier, as the ranks have left and the service answered a moment ago. Longer takes the time that the post needs,
shorter posts what is being delivered."""
REPLACE_S: Final = 900.0
"""After which a parcel that is still there is written again, the same: what became of it on a disk may be why. Longer shows
what follows it later, shorter writes for nothing."""
LOOK_S: Final = 0.5
"""Between two looks at the time. Longer delays the last words, shorter wakes an idle machine."""

PARCEL: Final = BatchLimit(most=20_000, most_bytes=LONGEST_BYTES - 1024)
"""What goes into one parcel beside its first line."""


@dataclass
class DeliveryState:
    """What the courier hears of the service; it alone writes here."""

    heard_s: float = field(default_factory=time.monotonic)
    """When the service answered last, by the monotonic clock; when it was asked first, before that."""
    taken: dict[int, int] = field(default_factory=dict)
    """Number of the last report of a spool that the service has."""
    is_refused: bool = False
    """Whether it has said that it wants nothing of this job."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set once the courier has done what it could."""


class StoreRelay:
    """A thread that posts what is in the spools of a job while the service is silent, and what is left at the end."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        directory: Path,
        attempt: int,
        incarnation: Incarnation | None = None,
        *,
        quiet_s: float = QUIET_S,
        pause_s: float = PAUSE_S,
        replace_s: float = REPLACE_S,
    ) -> None:
        """`open_store` is called once something is to be posted, as what it needs is large. `incarnation` is who posts;
        None: the launcher numbers the placements."""
        self._open_store = open_store
        self._directory = directory
        self._attempt = attempt
        self._incarnation = incarnation
        self._quiet_s = quiet_s
        self._least_pause_s = self._pause_s = pause_s
        self._replace_s = replace_s
        self._store: Store | None = None
        self._posted = dict[int, Place]()
        """By attempt: the place after the last report that was posted."""
        self._unseen = dict[int, list[ArchiveKey]]()
        """By attempt: parcels that were posted and not yet seen to be gone, in order."""
        self._received = dict[int, int]()
        """Number of the last report by attempt whose parcel the service has removed, and so taken."""
        self._oldest: tuple[ArchiveKey, float] | None = None
        """The oldest parcel that nobody has taken, and since when that is so; None: there was none at the last look."""
        self._damaged = set[int]()
        self._trouble = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-postbox", daemon=True)
        self.ear = DeliveryState()
        """What is heard of the service."""

    def start(self) -> None:
        """Begin to listen whether the service answers."""
        self._thread.start()

    def close(self) -> None:
        """Post what is left soon, if the courier does not get rid of it; returns at once."""
        self._closing.set()

    def join(self, within_s: float) -> None:
        """Return once all is posted, or the time is up."""
        self._thread.join(within_s)

    def _run(self) -> None:
        next_s = 0.0
        while not self._closing.wait(LOOK_S):
            if self._is_silent() and time.monotonic() >= next_s:
                self._post(MOST_PARCELS)
                next_s = time.monotonic() + self._pause_s
        if not self._is_silent():
            self.ear.over.wait(HEAD_START_S)
        self._post(MOST_PARCELS + LAST_PARCELS)

    def _is_silent(self) -> bool:
        return time.monotonic() - self.ear.heard_s >= self._quiet_s

    def _post(self, most: int) -> None:
        """Leave in the store what the service has not taken, up to so many parcels; what is in the way is said once."""
        if self.ear.is_refused:
            return
        try:
            if not any(self._waiting(attempt) for attempt in self._attempts()):
                return
            self._store = self._store or self._open_store()
            there = sorted(filter(None, map(ArchiveKey.of_key, self._store.list(INBOX))), key=_age)
            self._note_receipts(there)
            self._mind(self._store, there)
            room = most - len(there)
            for attempt in self._attempts():
                while room > 0 and (some := self._waiting(attempt)):
                    self._put(self._store, attempt, some)
                    room -= 1
            trouble = "" if room > 0 else f"{most} parcels of reports wait in the checkpoint store"
        except (StoreError, OSError, ValueError) as error:
            trouble = f"reports cannot be left in the checkpoint store: {error}"
        if trouble and trouble != self._trouble:
            log_info(f"{trouble}; what is not there yet stays on this node")
        self._trouble = trouble

    def _attempts(self) -> list[int]:
        """Those whose spools are here, the older ones first; the own one of a placement that is not numbered."""
        if self._incarnation:
            return [self._attempt]
        return [a for a in spooled_attempts(self._directory) if a <= self._attempt]

    def _note_receipts(self, there: list[ArchiveKey]) -> None:
        """Remove from the spools what the service has taken, as the parcels that are gone tell."""
        for attempt, posted in self._unseen.items():
            while posted and posted[0] not in there:
                self._received[attempt] = posted.pop(0).last
        taken = {
            attempt: max(n, self.ear.taken.get(attempt, 0)) for attempt, n in self._received.items()
        }
        trim(self._directory, {**self.ear.taken, **taken})

    def _waiting(self, attempt: int) -> list[tuple[Report, Place]]:
        """The next reports that were neither taken nor posted, each with the place after it."""
        start = self._posted.get(attempt, START)
        if (taken := self.ear.taken.get(attempt, 0)) > start.n:
            start = Place(taken)
        return list(PARCEL.first_of(self._lines(attempt, start)))

    def _lines(self, attempt: int, start: Place) -> Iterator[tuple[Report, Place]]:
        """The reports of a spool after a place, up to where it is damaged, which is said once."""
        try:
            yield from read_spool(spool_file(self._directory, attempt), start)
        except ValueError as damage:
            if attempt not in self._damaged:
                log_info(
                    f"the spool of attempt {attempt} cannot be read, nor what follows in it: {damage}"
                )
            self._damaged.add(attempt)

    def _put(self, store: Store, attempt: int, some: list[tuple[Report, Place]]) -> None:
        parcel = self._parcel(attempt, [report for report, _ in some])
        store.put(parcel.label.key, parcel.dump())
        self._posted[attempt] = some[-1][1]
        self._unseen.setdefault(attempt, []).append(parcel.label)

    def _parcel(self, attempt: int, reports: list[Report]) -> ReportArchive:
        if self._incarnation is None:
            return ReportArchive.of(sender_of(attempt), None, reports)
        standing = self._incarnation.standing()
        place = (standing.attempt, standing.before) if standing else None
        return ReportArchive.of(self._incarnation.name, place, reports)

    def _mind(self, store: Store, there: list[ArchiveKey]) -> None:
        """Post more seldom while nobody takes anything, and put again what lies there for too long."""
        oldest = there[0] if there else None
        if self._oldest is None or oldest != self._oldest[0]:
            self._pause_s = self._least_pause_s
            self._oldest = (oldest, time.monotonic()) if oldest else None
            return
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        if oldest and time.monotonic() - self._oldest[1] > self._replace_s:
            again = list(self._spooled(oldest))
            if [report.n for report in again] == [*range(oldest.first, oldest.last + 1)]:
                attempt = self._attempt if oldest.attempt is None else oldest.attempt
                store.put(oldest.key, self._parcel(attempt, again).dump())
            self._oldest = (oldest, time.monotonic())

    def _spooled(self, label: ArchiveKey) -> Iterator[Report]:
        """The reports of a parcel of ours, as long as their spool is here; nothing of anybody else's."""
        ours = self._incarnation.name if self._incarnation else label.sender
        if label.sender != ours or (self._incarnation is None and label.attempt is None):
            return
        attempt = self._attempt if label.attempt is None else label.attempt
        for report, _ in self._lines(attempt, Place(label.first - 1)):
            if report.n > label.last:
                return
            if report.n >= label.first:
                yield report


def _age(label: ArchiveKey) -> tuple[int, str, int]:
    """What sorts parcels as they were written, as far as their names tell."""
    return (label.attempt or 0, label.sender, label.first)
