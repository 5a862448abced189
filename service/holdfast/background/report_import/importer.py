"""The collector: where a job's workers are not heard, it looks whether they have left their reports in the checkpoint store.

What it takes goes the way of all reports (`Journal.absorb`), and is removed once it stands in the journal. A stop anywhere
leaves a parcel that was taken already, of which nothing is taken a second time. Stores are slow, so that each visit has a
thread; replicas that visit the same store at once do the same work twice, harmlessly.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from holdfast_worker.protocol.report_archive import ReportArchive, numbered
from holdfast_worker.protocol.reports import ReportKind

from holdfast.background.report_import.archives import SenderArchives, StoredArchive, list_archives
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import (
    BadReport,
    DepotRefused,
    DepotUnreachable,
    Fenced,
    NotMustered,
    StoreUnavailable,
)
from holdfast.ports import CheckpointBucket, Clock, OpenDepot
from holdfast.store.incarnations import Incarnations
from holdfast.store.journal import JobProgress, Journal
from holdfast.store.leases import LeaseTable

log = logging.getLogger(__name__)

VISITS_AT_ONCE: Final = 4
"""Fewer: a store that hangs holds up the others. More: connections and memory for reports that are late as it is."""
LOOK_S: Final = 5.0
"""Between two looks who is due. Shorter: work for nothing; longer: who begins to post is heard so much later."""
FEWEST_VISITS: Final = 20
"""Visits that one look may always begin. Fewer: a few jobs take turns for nothing. More: they hold up others."""
LONGEST_PAUSE: Final = timedelta(minutes=5)
"""Between two looks into a box in which nothing was: the pause doubles up to this. Longer: who begins to post waits so long to
be heard. Shorter: requests that a bucket charges for, of each job that is silent for a good reason."""
HEARD_PAUSE: Final = timedelta(minutes=10)
"""Between two looks into the box of a job that is heard, where an earlier placement may have left something. As above."""
AT_ONCE: Final = 1000
"""Reports that are taken in one transaction, as many as in one delivery. More holds up all that is written meanwhile."""
REFUSED_PAUSE: Final = timedelta(minutes=10)
"""After a store said no. Sooner is noise; later is how long a right that was given takes to help."""
LAST_LOOKS: Final = timedelta(hours=1)
"""After the end of a job, in which its box is looked into. Shorter: last words that came late are lost. Longer: requests for
nothing; what a worker posts later than that is a minute of silence and a day without a network late."""


@dataclass
class JobCursor:
    """What is remembered of a job between two visits. All of it may be lost."""

    due_at: datetime
    live_at: datetime
    """When it was watched last."""
    pause: timedelta
    seq: int = 0
    """Number of the last fact at the last visit."""
    marks: Mapping[int, int] | None = None
    """The highest report taken, by attempt, after the last look; None before the first."""
    heard_since: datetime | None = None
    """Since when each visit has found news that came another way; None: the last one has not."""
    trouble: str = ""


@dataclass(kw_only=True)
class ReportImporter:
    """Takes in what workers could not say."""

    journal: Journal
    musters: Incarnations
    watches: LeaseTable
    open_depot: OpenDepot
    clock: Clock
    every_s: float
    """Between two visits at a job that is not heard and posts."""
    _cases: dict[str, JobCursor] = field(default_factory=dict)
    _has_begun: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event)

    async def collect_on(self) -> None:
        """Visit who is due until cancelled. A bug that one visit brings to light stops none of the others."""
        loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(VISITS_AT_ONCE, thread_name_prefix="collector")
        try:
            while True:
                due = await loop.run_in_executor(threads, self._due)
                now_due = due[: self._most_at_once()]
                apart_s = self._look_s / (1 + len(now_due))
                visits = list[asyncio.Future[int]]()
                for job_id in now_due:
                    # One after the other: many at once hold up whoever asks the service meanwhile.
                    visits.append(loop.run_in_executor(threads, self.visit, job_id))
                    await asyncio.sleep(apart_s)
                for outcome in await asyncio.gather(*visits, return_exceptions=True):
                    if isinstance(outcome, Exception):
                        log.error("a bug while reports were collected", exc_info=outcome)
                await asyncio.sleep(apart_s)
        finally:
            self._stopped.set()
            threads.shutdown(wait=False, cancel_futures=True)

    @property
    def _look_s(self) -> float:
        return min(self.every_s, LOOK_S)

    def _most_at_once(self) -> int:
        """Visits in one look, so that all get their turn in twice the time between two of one job's: hundreds, as after a
        start, would take much of a core.
        """
        return max(FEWEST_VISITS, math.ceil(len(self._cases) * self._look_s / self.every_s / 2))

    def collect(self) -> int:
        """Visit all that are due, one after the other; how many parcels were taken."""
        return sum(map(self.visit, self._due()))

    def visit(self, job_id: str) -> int:
        """How many parcels of a job were taken; and when to come again."""
        case = self._cases[job_id]
        try:
            return self._visit(job_id, case)
        except (DepotUnreachable, DepotRefused) as error:
            is_final = isinstance(error, DepotRefused)
            case.pause = REFUSED_PAUSE if is_final else min(2 * case.pause, LONGEST_PAUSE)
            self._say(case, f"the reports of {job_id} cannot be collected: {error.detail}")
        except StoreUnavailable as error:
            log.error("nothing of %s is collected: %s", job_id, error.detail)  # noqa: TRY400 - the sentence says all
        case.due_at = self.clock.now() + case.pause
        return 0

    def _due(self) -> list[str]:
        now = self.clock.now()
        every = timedelta(seconds=self.every_s)
        try:
            live = set(self.watches.all())
            # Of those that ended while nobody looked, what was left last is still there.
            ended = [] if self._has_begun else self.watches.ended_since(now - LAST_LOOKS)
            for job_id in (*live, *ended):
                case = self._cases.setdefault(job_id, JobCursor(now, now, every))
                case.live_at = now if job_id in live else case.live_at
            self._cases = {j: c for j, c in self._cases.items() if now - c.live_at <= LAST_LOOKS}
            due = self._unheard(
                [job_id for job_id, case in self._cases.items() if case.due_at <= now], now
            )
        except StoreUnavailable as error:
            log.error("nothing is collected: %s", error.detail)  # noqa: TRY400 - the sentence says all
            return []
        self._has_begun = True
        return sorted(due, key=lambda job_id: self._cases[job_id].due_at)

    def _unheard(self, job_ids: Sequence[str], now: datetime) -> list[str]:
        """Those of these jobs at which it is necessary to look. All are asked for at once: most of many are heard."""
        progress = self.journal.progress(job_ids)
        return [job_id for job_id in job_ids if not self._is_heard(job_id, progress[job_id], now)]

    def _visit(self, job_id: str, case: JobCursor) -> int:
        now = self.clock.now()
        case.due_at = now + case.pause
        job = self.journal.read(job_id)
        if not (job.is_launched or job.attempt):
            return 0
        spec = JobSpec.stored(self.journal.submission(job_id).spec)
        if (checkpoint := spec.holdfast.checkpoint) is None:
            case.due_at = now + LAST_LOOKS
            return 0
        depot = self.open_depot(checkpoint.store, job_id, spec.envs)
        trouble, taken = "", 0
        piles = list_archives(depot, now)
        for pile in piles:
            some, why = _Taking(self, job_id, depot, pile).take()
            taken, trouble = taken + some, why or trouble
        self._say(case, trouble)
        case.marks = self.journal.marks(job_id)
        case.heard_since = None
        # What lies there and is in order waits for a look at the launcher.
        is_moving = taken or (piles and not trouble)
        every = timedelta(seconds=self.every_s)
        case.pause = every if is_moving else min(2 * case.pause, LONGEST_PAUSE)
        case.due_at = now + case.pause
        return taken

    def _is_heard(self, job_id: str, progress: JobProgress, now: datetime) -> bool:
        """Whether the workers of a job are heard another way, so that there is no need to look yet."""
        case, every = self._cases[job_id], timedelta(seconds=self.every_s)
        if progress.seq != case.seq:  # As when new nodes have come.
            case.seq, case.pause = progress.seq, every
        if case.marks is None or progress.has_ended or progress.marks == case.marks:
            return False
        case.marks, case.heard_since = progress.marks, case.heard_since or now
        case.pause = every
        case.due_at = now + case.pause
        return now - case.heard_since < HEARD_PAUSE

    def _say(self, case: JobCursor, trouble: str) -> None:
        if trouble and trouble != case.trouble:
            log.warning("%s", trouble)
        case.trouble = trouble

    @property
    def is_stopped(self) -> bool:
        """Whether to leave the rest for another time."""
        return self._stopped.is_set()


@dataclass(frozen=True)
class _Taking:
    """The taking of what one sender posted."""

    house: ReportImporter
    job_id: str
    depot: CheckpointBucket
    pile: SenderArchives

    def take(self) -> tuple[int, str]:
        """How many parcels are done with, and what is wrong with the next one; empty if nothing is.

        Raises:
            DepotUnreachable, DepotRefused: what was taken so far is in the journal, whether or not it is removed.
        """
        done, trouble = list[str](), ""
        for posted in self.pile.parcels:
            why = "" if self.house.is_stopped else self._take_one(posted)
            if why is not None:
                trouble = why
                break
            done.append(posted.label.key)
            # One by one: what is removed late is read again, should anything come between.
            self.depot.delete(done[-1:])
        return len(done), trouble

    def _take_one(self, posted: StoredArchive) -> str | None:
        """Why a parcel has to stay; None if it is done with."""
        where = f"{self.job_id}: {posted.label.key}"
        try:
            parcel = posted.read(self.depot)
        except ValueError as damage:
            return f"{where} cannot be read, and what was posted after it waits: {damage}"
        if parcel is None:
            return None
        place = self._place(parcel)
        if place is None:
            return ""  # It is not known yet which attempt posts here.
        return self._absorb(where, posted, parcel, place)

    def _place(self, parcel: ReportArchive) -> tuple[int, int] | None:
        if self.pile.attempt is not None:
            return self.pile.attempt, 0
        return self.house.musters.posted(
            self.job_id, self.pile.sender, self.pile.since, parcel.place
        )

    def _absorb(
        self, where: str, posted: StoredArchive, parcel: ReportArchive, place: tuple[int, int]
    ) -> str | None:
        who = self.pile.sender if self.pile.attempt is None else None
        reports = numbered(parcel.reports, *place)
        wanted = 0
        try:
            for first in range(0, len(reports), AT_ONCE):
                some = reports[first : first + AT_ONCE]
                absorb = self.house.journal.absorb
                wanted = absorb(self.job_id, place[0], some, who, posted.at).next
        except Fenced:
            log.info("%s is not taken: by then another worker spoke for the job", where)
            return None
        except NotMustered:
            return f"{where} is of a worker that is known as that of another attempt"
        except BadReport as error:
            # A worker that speaks nonsense is not asked to say it better.
            return f"{where} cannot be taken, nor what was posted after it: {error.detail}"
        if wanted <= reports[-1].n:
            return f"{where} waits for reports {wanted} to {reports[0].n - 1}, which are not there"
        if any(report.kind == ReportKind.WORKER_LEFT for report in reports):
            # Its nodes may have been left to it for this; now they can go.
            self.house.watches.nudge(self.job_id, self.house.clock.now())
        return None
