"""The courier: brings spooled reports to the service, in order, as often as it takes. Standard library only.

It lives outside of the training loop's way: losing the service costs nothing but the delay of the reports. A placement
that nobody numbered is mustered first; until then its reports wait in the spool like all others.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar

from holdfast_worker.clock import now
from holdfast_worker.console import log_info
from holdfast_worker.protocol.reports import LONGEST_BODY_BYTES, Report
from holdfast_worker.protocol.spool_segments import START, Place
from holdfast_worker.storage.retry import JITTER
from holdfast_worker.telemetry.incarnation import Incarnation, ReportOffset
from holdfast_worker.telemetry.service_client import (
    Answer,
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

BATCH: Final = BatchLimit(most=200, most_bytes=LONGEST_BODY_BYTES // 2)
"""What goes into one delivery. More reports make a retry dear, fewer make a long spool slow. More bytes may not pass a proxy
before the service, as nginx stops at 1 MiB, too; fewer the same as above."""
LOOK_S: Final = 0.5
"""How often the spool is looked at. Longer delays the dashboard, shorter wakes an idle machine."""
PULSE_S: Final = 20.0
"""After so long without a report, the service is asked whether it has anything to say. Longer and a rank that hangs is
asked to leave too late, shorter is traffic about nothing."""
LONGEST_WAIT_S: Final = 10.0
"""Between two tries. Longer delays the catching up after an outage, shorter hammers a service that is down."""
LAST_TRY_S: Final = 5.0
"""After the ranks have left. Longer holds a node that may be paid for, shorter leaves more in the spool."""
LAST_POST_S: Final = 20.0
"""For what could not be delivered to be left in the checkpoint store, where nobody waits for our end. Both ways as above."""
LAST_TRY_UNNUMBERED_S: Final = 30.0
"""The same where the spool goes with the node, and the service has to ask the launcher about us first."""


class ReportSender:
    """A thread that delivers the spools of a job: those of older attempts first, then the current one as it grows."""

    def __init__(
        self,
        doorstep: ServiceClient,
        directory: Path,
        attempt: int,
        incarnation: Incarnation | None = None,
        *,
        pulse_s: float = PULSE_S,
        postbox: StoreRelay | None = None,
    ) -> None:
        """`incarnation` musters before it reports; None: the launcher numbers the placements. `postbox` is where goes what
        cannot be delivered; None: it waits in the spool alone."""
        self._doorstep = doorstep
        self._directory = directory
        self._attempt = attempt
        self._incarnation = incarnation
        self._pulse_s = pulse_s
        self._postbox = postbox
        self._ear = postbox.ear if postbox else DeliveryState()
        self._gaps = set[int]()
        self._closing = threading.Event()
        self._last_try_s = float("inf")
        self._thread = threading.Thread(target=self._run, name="holdfast-courier", daemon=True)
        self.leave_by: datetime | None = None
        """When the job is to have saved its work and left, as the service asks; None while it does not."""
        self.replaced: str | None = None
        """That another incarnation took over, in the service's words; nothing that happens here counts any more. None:
        as far as is known, this one is the newest."""

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()
        if self._postbox:
            self._postbox.start()

    def close(self, within_s: float | None = None) -> None:
        """Deliver what is there now, within that time; the rest is posted, or stays in the spool."""
        post_s = LAST_POST_S if within_s is None else within_s
        if within_s is None:
            within_s = LAST_TRY_UNNUMBERED_S if self._incarnation else LAST_TRY_S
        began_s = time.monotonic()
        self._last_try_s = began_s + within_s
        self._closing.set()
        if self._postbox:
            self._postbox.close()
        self._thread.join(within_s)
        if self._postbox:
            self._postbox.join(max(0.0, began_s + post_s - time.monotonic()))

    def _run(self) -> None:
        try:
            if self._incarnation:
                self._deliver_unnumbered(self._incarnation)
            else:
                self._deliver_numbered()
        except Superseded as answer:
            self._ear.is_refused = True
            self.replaced = str(answer)
        finally:
            self._ear.over.set()

    def _deliver_numbered(self) -> None:
        older = [a for a in spooled_attempts(self._directory) if a < self._attempt]
        for attempt in [*older, self._attempt]:
            self._deliver_spool(attempt, ReportOffset(attempt, 0))

    def _deliver_unnumbered(self, who: Incarnation) -> None:
        while standing := self._muster(who):
            try:
                self._deliver_spool(self._attempt, standing)
            except UnknownIncarnation as answer:
                log_info(f"the service has forgotten this placement, which musters again: {answer}")
            else:
                return
            if not self._has_time_after(LOOK_S):
                return

    def _muster(self, who: Incarnation) -> ReportOffset | None:
        """The place of our reports; None when the time is up, or the service will not number us."""
        try:
            mustered = self._patiently(self._doorstep.muster)
        except ReportRejected as answer:
            log_info(f"the service does not number this placement, which reports nothing: {answer}")
            self._ear.is_refused = True
            return None
        if not mustered:
            return None
        standing = who.standing()
        if not standing or standing.attempt != mustered.attempt:
            standing = ReportOffset(mustered.attempt, mustered.before)
            who.save_offset(standing)
        return standing

    def _deliver_spool(self, attempt: int, standing: ReportOffset) -> None:
        """Return when all is delivered and nothing more can come, or the time is up."""
        try:
            self._deliver_file(attempt, standing)
        except ReportRejected as answer:
            log_info(f"the service refused the reports of attempt {standing.attempt}: {answer}")
            self._ear.is_refused = attempt == self._attempt
        except ValueError as damage:
            log_info(f"the spool of attempt {standing.attempt} cannot be read: {damage}")

    def _deliver_file(self, attempt: int, standing: ReportOffset) -> None:
        file = spool_file(self._directory, attempt)
        wanted = self._hand_over(standing, [])
        heard_s = time.monotonic()
        start = START
        trimmed = -1 if attempt == self._attempt else start.segment
        while wanted is not None:
            if 0 < wanted <= standing.before:
                # It lost what others had sent before us, and will never get it again: ours follow what it has.
                standing = self._move(standing, wanted - 1)
            self._ear.taken[attempt] = max(0, wanted - 1 - standing.before)
            # Once for each segment that is acknowledged, and at the first answer of the own attempt.
            if start.segment != trimmed:
                trim(self._directory, self._ear.taken)
                trimmed = start.segment
            # Asked before the look: what was written until then is seen by it.
            is_complete = attempt != self._attempt or self._closing.is_set()
            waiting = ((r, place) for r, place in _numbered(file, start, standing) if r.n >= wanted)
            batch = list(BATCH.first_of(waiting))
            if not batch and is_complete:
                return
            if not batch and time.monotonic() - heard_s < self._pulse_s:
                self._closing.wait(LOOK_S)
                continue
            expected = batch[-1][0].n + 1 if batch else wanted
            oldest = batch[0][0].n if batch and batch[0][0].n > wanted else None
            before, wanted = wanted, self._hand_over(standing, [r for r, _ in batch], oldest)
            heard_s = time.monotonic()
            if oldest and wanted == before:
                self._tell_gap(standing.attempt, before, oldest)
                if is_complete:
                    return
                self._closing.wait(self._pulse_s)
            # A service that lost some asks for them again, from the oldest on that there is.
            if wanted != expected:
                start = START
            elif batch:
                start = batch[-1][1]

    def _move(self, standing: ReportOffset, before: int) -> ReportOffset:
        moved = ReportOffset(standing.attempt, before)
        if self._incarnation:
            self._incarnation.save_offset(moved)
        return moved

    def _tell_gap(self, attempt: int, wanted: int, oldest: int) -> None:
        if attempt not in self._gaps:
            log_info(
                f"the service does not continue without report {wanted} of attempt {attempt}, and the oldest that is kept "
                f"here is {oldest}: upgrade the service"
            )
        self._gaps.add(attempt)

    def _hand_over(
        self, standing: ReportOffset, reports: list[Report], oldest: int | None = None
    ) -> int | None:
        """The number that is wanted next; None when the time is up."""
        answer: Answer | None = self._patiently(
            lambda: self._doorstep.deliver(standing.attempt, reports, oldest)
        )
        if not answer:
            return None
        self._ear.heard_s = time.monotonic()
        # Who numbers the placements gives them notice too, with a deadline, and expects none to leave before that.
        if answer.leave_within_s is not None and self._incarnation and not self.leave_by:
            self.leave_by = now() + timedelta(seconds=answer.leave_within_s)
        return answer.next

    def _patiently(self, say: Callable[[], T]) -> T | None:
        """The answer; None when the time is up."""
        for tries in itertools.count():
            try:
                return say()
            except ServiceUnreachable:
                wait_s = JITTER.uniform(0.5, 1.0) * min(LONGEST_WAIT_S, 0.25 * 2 ** min(tries, 10))
            if not self._has_time_after(wait_s):
                return None
        raise AssertionError("unreachable")

    def _has_time_after(self, wait_s: float) -> bool:
        """Whether another try may be made, after a wait."""
        if self._closing.is_set():
            # The last tries are close to each other: there may be only seconds left.
            time.sleep(min(wait_s, 0.5))
        else:
            self._closing.wait(wait_s)
        return time.monotonic() <= self._last_try_s


def _numbered(file: Path, start: Place, standing: ReportOffset) -> Iterator[tuple[Report, Place]]:
    """The reports of a spool after a place, under the numbers at which the service knows them."""
    for report, place in read_spool(file, start):
        yield replace(report, attempt=standing.attempt, n=report.n + standing.before), place
