"""Imports a job's reports from its checkpoint store during an outage.

Imported reports take the path of all reports (`Journal.ingest`); the archive is deleted once they
are in the journal. After an interruption the same archive is imported again, and no report is
recorded twice. Stores are slow, so each visit runs in a thread. Replicas that visit the same store
at once duplicate work, harmlessly.
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

from holdfast_worker.protocol.report_archive import ReportArchive, renumber
from holdfast_worker.protocol.reports import ReportKind

from holdfast.background.report_import.archives import SenderArchives, StoredArchive, list_archives
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import (
    BadReport,
    CheckpointStoreRefused,
    CheckpointStoreUnreachable,
    Fenced,
    NotRegistered,
    StoreUnavailable,
)
from holdfast.ports import CheckpointBucket, Clock, OpenBucket
from holdfast.store.incarnations import Incarnations
from holdfast.store.journal import JobProgress, Journal
from holdfast.store.leases import LeaseTable

log = logging.getLogger(__name__)

CONCURRENT_JOBS: Final = 4
"""Visits at once. A lower value lets a hanging store block others; a higher value uses
connections and memory for reports that are late anyway."""
POLL_S: Final = 5.0
"""Seconds between two searches for due jobs. A lower value adds work; a higher value delays
the first import from a store."""
MIN_JOBS_PER_PASS: Final = 20
"""Visits that a pass may always start. A lower value makes a few jobs wait for each other; a
higher value lets them delay others."""
MAX_PAUSE: Final = timedelta(minutes=5)
"""Maximum pause between two visits to a store without reports; the pause doubles up to this.
A lower value adds billed requests for silent jobs; a higher value delays the first
import."""
REACHABLE_PAUSE: Final = timedelta(minutes=10)
"""Pause between two visits for a job whose workers are reachable: an earlier attempt may
have left reports. A lower value adds billed requests; a higher value delays their import."""
BATCH_SIZE: Final = 1000
"""Reports recorded in one transaction, as many as in one delivery. A higher value blocks
other writers for longer."""
REFUSED_PAUSE: Final = timedelta(minutes=10)
"""Pause after a store refused access. A lower value adds log noise; a higher value delays
the import after access was granted."""
IMPORT_AFTER_END: Final = timedelta(hours=1)
"""Time after the end of a job in which its store is visited. A lower value loses late
reports; a higher value adds requests. Later reports come only after a minute of silence
and a day without a network."""


@dataclass
class JobCursor:
    """State of a job between two visits. All of it can be recomputed."""

    due_at: datetime
    live_at: datetime
    """When the job was last live."""
    pause: timedelta
    seq: int = 0
    """Number of the last event at the last visit."""
    marks: Mapping[int, int] | None = None
    """The highest recorded report by attempt, after the last visit; None before the first one."""
    reachable_since: datetime | None = None
    """Time since which each visit found reports that arrived directly; None: the last visit
    found none."""
    error: str = ""


@dataclass(kw_only=True)
class ReportImporter:
    """Imports reports from the checkpoint stores of jobs."""

    journal: Journal
    incarnations: Incarnations
    leases: LeaseTable
    open_bucket: OpenBucket
    clock: Clock
    every_s: float
    """Seconds between two visits for a job whose reports arrive only through its store."""
    _cursors: dict[str, JobCursor] = field(default_factory=dict)
    _is_started: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event)

    async def run(self) -> None:
        """Visit the jobs that are due until cancelled.

        An unexpected error in one visit does not stop the others.
        """
        loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(CONCURRENT_JOBS, thread_name_prefix="report-import")
        try:
            while True:
                due = await loop.run_in_executor(threads, self._due)
                now_due = due[: self._jobs_per_pass()]
                apart_s = self._poll_s / (1 + len(now_due))
                visits = list[asyncio.Future[int]]()
                for job_id in now_due:
                    # Spread over time: many at once delay API requests.
                    visits.append(loop.run_in_executor(threads, self.import_job, job_id))
                    await asyncio.sleep(apart_s)
                for outcome in await asyncio.gather(*visits, return_exceptions=True):
                    if isinstance(outcome, Exception):
                        log.error("unexpected error in a report import", exc_info=outcome)
                await asyncio.sleep(apart_s)
        finally:
            self._stopped.set()
            threads.shutdown(wait=False, cancel_futures=True)

    @property
    def _poll_s(self) -> float:
        return min(self.every_s, POLL_S)

    def _jobs_per_pass(self) -> int:
        """Visits of one pass, so that all jobs are visited within twice their interval.

        Hundreds at once, as after a start, would use much of a core.
        """
        return max(
            MIN_JOBS_PER_PASS, math.ceil(len(self._cursors) * self._poll_s / self.every_s / 2)
        )

    def run_once(self) -> int:
        """Visit all jobs that are due, one after the other; return the number of imported archives."""
        return sum(map(self.import_job, self._due()))

    def import_job(self, job_id: str) -> int:
        """Import the archives of a job, schedule its next visit and return the number of archives."""
        cursor = self._cursors[job_id]
        try:
            return self._import_job(job_id, cursor)
        except (CheckpointStoreUnreachable, CheckpointStoreRefused) as error:
            is_final = isinstance(error, CheckpointStoreRefused)
            cursor.pause = REFUSED_PAUSE if is_final else min(2 * cursor.pause, MAX_PAUSE)
            self._log_error(cursor, f"reports of {job_id} cannot be imported: {error.detail}")
        except StoreUnavailable as error:
            log.error("reports of %s are not imported: %s", job_id, error.detail)  # noqa: TRY400 - the message is complete
        cursor.due_at = self.clock.now() + cursor.pause
        return 0

    def _due(self) -> list[str]:
        now = self.clock.now()
        every = timedelta(seconds=self.every_s)
        try:
            live = set(self.leases.list_jobs())
            # Jobs that ended while the service was down may have last reports in their stores.
            ended = [] if self._is_started else self.leases.ended_since(now - IMPORT_AFTER_END)
            for job_id in (*live, *ended):
                cursor = self._cursors.setdefault(job_id, JobCursor(now, now, every))
                cursor.live_at = now if job_id in live else cursor.live_at
            self._cursors = {
                j: c for j, c in self._cursors.items() if now - c.live_at <= IMPORT_AFTER_END
            }
            due = self._unreachable(
                [job_id for job_id, cursor in self._cursors.items() if cursor.due_at <= now], now
            )
        except StoreUnavailable as error:
            log.error("reports are not imported: %s", error.detail)  # noqa: TRY400 - the message is complete
            return []
        self._is_started = True
        return sorted(due, key=lambda job_id: self._cursors[job_id].due_at)

    def _unreachable(self, job_ids: Sequence[str], now: datetime) -> list[str]:
        """The jobs whose workers are not reachable.

        All are read in one query, since most of many jobs are reachable.
        """
        progress = self.journal.progress(job_ids)
        return [
            job_id for job_id in job_ids if not self._is_reachable(job_id, progress[job_id], now)
        ]

    def _import_job(self, job_id: str, cursor: JobCursor) -> int:
        now = self.clock.now()
        cursor.due_at = now + cursor.pause
        job = self.journal.read(job_id)
        if not (job.is_launched or job.attempt):
            return 0
        spec = JobSpec.from_stored(self.journal.submission(job_id).spec)
        if (checkpoint := spec.holdfast.checkpoint) is None:
            cursor.due_at = now + IMPORT_AFTER_END
            return 0
        bucket = self.open_bucket(checkpoint.store, job_id, spec.envs)
        problem, taken = "", 0
        senders = list_archives(bucket, now)
        for sender in senders:
            some, why = _SenderImport(self, job_id, bucket, sender).run()
            taken, problem = taken + some, why or problem
        self._log_error(cursor, problem)
        cursor.marks = self.journal.marks(job_id)
        cursor.reachable_since = None
        # Intact archives that remain wait for the next poll of the launcher.
        is_moving = taken or (senders and not problem)
        every = timedelta(seconds=self.every_s)
        cursor.pause = every if is_moving else min(2 * cursor.pause, MAX_PAUSE)
        cursor.due_at = now + cursor.pause
        return taken

    def _is_reachable(self, job_id: str, progress: JobProgress, now: datetime) -> bool:
        """Whether the reports of a job arrive directly, so that a visit can wait."""
        cursor, every = self._cursors[job_id], timedelta(seconds=self.every_s)
        if progress.seq != cursor.seq:  # New events, as after a new attempt.
            cursor.seq, cursor.pause = progress.seq, every
        if cursor.marks is None or progress.has_ended or progress.marks == cursor.marks:
            return False
        cursor.marks, cursor.reachable_since = progress.marks, cursor.reachable_since or now
        cursor.pause = every
        cursor.due_at = now + cursor.pause
        return now - cursor.reachable_since < REACHABLE_PAUSE

    def _log_error(self, cursor: JobCursor, problem: str) -> None:
        if problem and problem != cursor.error:
            log.warning("%s", problem)
        cursor.error = problem

    @property
    def is_stopped(self) -> bool:
        """Whether the service is stopping."""
        return self._stopped.is_set()


@dataclass(frozen=True)
class _SenderImport:
    """The import of one sender's archives."""

    importer: ReportImporter
    job_id: str
    bucket: CheckpointBucket
    inbox: SenderArchives

    def run(self) -> tuple[int, str]:
        """Import the archives; return their number, and the problem with the next one, if any.

        Raises:
            CheckpointStoreUnreachable, CheckpointStoreRefused: imported reports are in the journal,
                whether or not their archives are deleted.
        """
        done, problem = list[str](), ""
        for posted in self.inbox.archives:
            why = "" if self.importer.is_stopped else self._import_archive(posted)
            if why is not None:
                problem = why
                break
            done.append(posted.archive_key.path)
            # Deleted one by one: after an interruption, only undeleted archives are read again.
            self.bucket.delete(done[-1:])
        return len(done), problem

    def _import_archive(self, posted: StoredArchive) -> str | None:
        """Import an archive; return None when done, or the reason why it has to stay."""
        where = f"{self.job_id}: {posted.archive_key.path}"
        try:
            archive = posted.read(self.bucket)
        except ValueError as damage:
            return f"{where} cannot be read, and later archives wait: {damage}"
        if archive is None:
            return None
        place = self._attempt_and_offset(archive)
        if place is None:
            return ""  # The attempt of this sender is not known yet.
        return self._append_reports(where, posted, archive, place)

    def _attempt_and_offset(self, archive: ReportArchive) -> tuple[int, int] | None:
        if self.inbox.attempt is not None:
            return self.inbox.attempt, 0
        return self.importer.incarnations.register_posted(
            self.job_id, self.inbox.sender, self.inbox.since, archive.offset
        )

    def _append_reports(
        self, where: str, posted: StoredArchive, archive: ReportArchive, place: tuple[int, int]
    ) -> str | None:
        sender = self.inbox.sender if self.inbox.attempt is None else None
        reports = renumber(archive.reports, *place)
        wanted = 0
        try:
            for first in range(0, len(reports), BATCH_SIZE):
                some = reports[first : first + BATCH_SIZE]
                ingest = self.importer.journal.ingest
                wanted = ingest(self.job_id, place[0], some, sender, posted.at).next
        except Fenced:
            log.info("%s is not imported: a newer worker had replaced its sender", where)
            return None
        except NotRegistered:
            return f"{where} belongs to a worker that is registered for another attempt"
        except BadReport as error:
            # A malformed archive stays malformed, so its import is not retried.
            return f"{where} cannot be imported, and later archives wait: {error.detail}"
        if wanted <= reports[-1].n:
            return f"{where} waits for reports {wanted} to {reports[0].n - 1}, which are missing"
        if any(report.kind == ReportKind.WORKER_LEFT for report in reports):
            # Its nodes may have been kept for this import; they can be released now.
            self.importer.leases.make_due(self.job_id, self.importer.clock.now())
        return None
