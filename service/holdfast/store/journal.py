"""The journal: facts are appended, nothing is changed. The key `(job_id, seq)` is the only lock there is.

Every write of a job's state goes through `Journal`; the row in `jobs` is a cache of the fold, written in the same
transaction as the facts that it repeats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast_worker.protocol.policies import RetentionOwner
from holdfast_worker.protocol.reports import Report
from sqlalchemy import Connection, Engine, insert, select, update

from holdfast.domain.access.audit import Actor, AuditAction
from holdfast.domain.events import Event, Outcome, Submitted, decode
from holdfast.domain.jobfile.spec import engine_of
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import begin
from holdfast.errors import (
    BadJobFile,
    Flaw,
    HoldfastError,
    IdempotencyMismatch,
    NotFound,
    NotPossibleNow,
)
from holdfast.ports import Clock
from holdfast.store import audit_log, event_log, retention_queue
from holdfast.store.budgets import Budgets, charge_closed_job
from holdfast.store.channels import put as put_channels
from holdfast.store.database import reading, writing
from holdfast.store.report_ingest import Batch, BatchResult, take
from holdfast.store.secrets import put as put_secrets
from holdfast.store.tables.jobs import (
    job_events,
    jobs,
    removed_jobs,
    report_marks,
    submissions,
    watches,
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event as it stands in the journal."""

    cursor: int
    """Its place among the events of all jobs."""
    job_id: str
    seq: int
    recorded_at: datetime
    kind: str
    """The name of the event, also of one that this version does not know."""
    source: str
    """Who told it."""
    event: Event


@dataclass(frozen=True, slots=True)
class Request:
    """Identity of a submission, so that a repeated one is answered like the first."""

    idempotency_key: str
    sha256: str
    """Digest of all that the request asks for."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What became of a batch of reports."""

    next: int
    """Number of the report of this attempt that is wanted next."""
    job: Job
    """As it is now."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job has come."""

    seq: int
    """Number of its newest fact."""
    has_ended: bool
    marks: Mapping[int, int]
    """The highest report taken, by attempt."""


class Journal:
    """The log of all jobs, with the fold of each."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    @property
    def budgets(self) -> Budgets:
        """What projects and users may spend."""
        return Budgets(self._engine, self._clock)

    def submit(
        self,
        job_id: str,
        event: Submitted,
        request: Request | None = None,
        sealed: str | None = None,
        tidied_by: RetentionOwner | None = None,
        *,
        channels: Sequence[Mapping[str, Any]] = (),
        doer: Actor | None = None,
    ) -> Job:
        """The new job with its sealed secrets, or the one that the same request made before.

        `tidied_by` is who removes its old checkpoints; None if it makes none. `channels` are rows of
        `Channels.of_job`, to which news of it goes. `doer` is who is named in the audit log;
        None if nobody is.

        Raises:
            IdempotencyMismatch: the key was used for another request.
            NotPossibleNow: the job that the same request made was removed.
            StaleWrite: the id is taken.
            BudgetSpent: its project or its owner may spend nothing more in this month.
            BadJobFile: the checkpoints that it resumes from were removed.
        """
        with writing(self._engine) as connection:
            if request and (earlier := self._earlier(connection, request)):
                return event_log.read(connection, earlier)
            _require_source(connection, event)
            job = begin(job_id, event)
            charge_closed_job(connection, job, [event], self._clock.now())
            event_log.write(connection, job.id, [event], first_seq=1, now=self._clock.now())
            row = {"id": job.id, "submitted_at": job.submitted_at, **event_log.row(job)}
            whose = {"project": job.project, "owner": job.owner}
            connection.execute(insert(jobs).values(**row, **whose))
            engine = engine_of(event.spec.get("resources", {}))
            watch = {"job_id": job.id, "engine": engine.value, "due_at": event.at}
            connection.execute(insert(watches).values(**watch))
            if tidied_by is RetentionOwner.SERVICE:
                retention_queue.open_row(connection, job_id, event.at)
            if sealed is not None:
                put_secrets(connection, job_id, sealed)
            put_channels(connection, channels)
            if request:
                key = {"idempotency_key": request.idempotency_key, "request_sha256": request.sha256}
                connection.execute(insert(submissions).values(**key, job_id=job.id, at=event.at))
            if doer:
                self._note(connection, doer.did("job.submit", job_id, after=whose))
        return job

    def made_by(self, request: Request) -> Job | None:
        """The job that the same request made before; None if it is a new one.

        Raises:
            IdempotencyMismatch: the key was used for another request.
            NotPossibleNow: that job was removed.
        """
        with reading(self._engine) as connection:
            earlier = self._earlier(connection, request)
            return event_log.read(connection, earlier) if earlier else None

    def read(self, job_id: str) -> Job:
        """The job as its newest fact left it.

        Raises:
            NotFound: there is no such job.
        """
        with reading(self._engine) as connection:
            return event_log.read(connection, job_id)

    def append(self, job: Job, events: Sequence[Event], deed: AuditAction | None = None) -> Job:
        """The job after `events`, which were decided upon `job` as it was read.

        `deed` is what the audit log tells of it, written with them or not at all; None: nothing.

        Raises:
            StaleWrite: someone else wrote to this job since; nothing was written.
            IllegalTransition: an event cannot follow; nothing was written.
            BudgetSpent: they begin something, and nothing more may be spent in this month; nothing was written.
        """
        if not events:
            return job
        with writing(self._engine) as connection:
            charge_closed_job(connection, job, events, self._clock.now())
            after = event_log.record(connection, job, events, self._clock.now())
            if deed:
                self._note(connection, deed)
        return after

    def absorb(
        self,
        job_id: str,
        attempt: int,
        reports: Iterable[Report],
        incarnation: str | None = None,
        posted_at: datetime | None = None,
        *,
        oldest: int | None = None,
    ) -> IngestResult:
        """What is wanted next of `attempt`, after taking those of `reports` that fit.

        What was taken before is passed over; from a gap on nothing is taken, and the reply tells the sender where
        to go on. Only before the report numbered `oldest` a gap is accepted, as nobody has the reports in it. `incarnation` is who sent them, where that had to be asked; None where the launcher numbers its
        placements. `posted_at` is when they were left in the checkpoint store; None: it says them now.

        Raises:
            NotFound: there is no such job.
            Fenced: another worker had taken over by then; nothing was taken.
            NotMustered: the sender is not known to be of this attempt; nothing was taken.
            BadReport: a report cannot be understood; nothing of the batch was taken.
        """
        batch = Batch(
            job_id=job_id,
            attempt=attempt,
            reports=tuple(reports),
            incarnation=incarnation,
            posted_at=posted_at,
            oldest=oldest,
        )
        with writing(self._engine) as connection:
            [verdict] = take(connection, [batch], self._clock.now())
            if isinstance(verdict, HoldfastError):
                raise verdict
            return IngestResult(verdict.next, verdict.job or event_log.read(connection, job_id))

    def ingest_reports(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """What became of each of several batches, in order: as if they were absorbed one by one, in one transaction.

        Raises:
            StaleWrite: the log does not take a fact of one; nothing of any was taken.
            IllegalTransition: a fact of one cannot follow; nothing of any was taken.
            StoreUnavailable: the database cannot be used.
        """
        with writing(self._engine) as connection:
            return take(connection, batches, self._clock.now())

    def marks(self, job_id: str) -> dict[int, int]:
        """The highest report taken, by attempt."""
        with reading(self._engine) as connection:
            return marks_of(connection, [job_id]).get(job_id, {})

    def progress(self, job_ids: Collection[str]) -> dict[str, JobProgress]:
        """How far each of these jobs has come."""
        query = select(jobs.c.id, jobs.c.seq, jobs.c.status).where(jobs.c.id.in_(job_ids))
        with reading(self._engine) as connection:
            marks = marks_of(connection, job_ids)
            return {
                job_id: JobProgress(seq, status in list(Outcome), marks.get(job_id, {}))
                for job_id, seq, status in connection.execute(query)
            }

    def events(self, job_id: str, *, after_seq: int = 0) -> list[Recorded]:
        """The facts of one job in order.

        Raises:
            NotFound: there is no such job.
        """
        query = select(job_events).where(
            job_events.c.job_id == job_id, job_events.c.seq > after_seq
        )
        with reading(self._engine) as connection:
            _require(connection, job_id)
            return [
                recorded(row)
                for row in connection.execute(query.order_by(job_events.c.seq)).mappings()
            ]

    def submission(self, job_id: str) -> Submitted:
        """What was asked for.

        Raises:
            NotFound: there is no such job.
        """
        query = select(job_events).where(job_events.c.job_id == job_id, job_events.c.seq == 1)
        with reading(self._engine) as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            raise NotFound(f"there is no job {job_id}")
        event = recorded(row).event
        assert isinstance(event, Submitted)
        return event

    def launches_of_removed(self, job_id: str) -> int:
        """Number of the last launch of a job that was removed; 0 if there is no such job."""
        query = select(removed_jobs.c.launches).where(removed_jobs.c.id == job_id)
        with reading(self._engine) as connection:
            return connection.execute(query).scalar() or 0

    def refold(self, job_id: str) -> Job:
        """The job folded anew from its log; the cached row is left as it is.

        Raises:
            NotFound: there is no such job.
        """
        with reading(self._engine) as connection:
            _require(connection, job_id)
            return event_log.refold(connection, job_id)

    def differs(self, job_id: str) -> bool:
        """Whether the cached row tells another story than the log."""
        return self.refold(job_id) != self.read(job_id)

    def rebuild(self, job_id: str) -> Job:
        """The job folded anew from its log, with the cached row put right."""
        job = self.refold(job_id)
        with writing(self._engine) as connection:
            # A row that went on since is newer than what was folded here.
            connection.execute(
                update(jobs)
                .where(jobs.c.id == job_id, jobs.c.seq <= job.seq)
                .values(**event_log.row(job))
            )
        return job

    def renew(self) -> int:
        """How many cached rows another version had made; all are put right now, so that no reader folds them again."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(jobs.c.id, jobs.c.fold))
            stale = [row.id for row in rows if event_log.is_stale(row.fold)]
        for job_id in stale:
            self.rebuild(job_id)
        return len(stale)

    def _earlier(self, connection: Connection, request: Request) -> str | None:
        query = select(submissions).where(submissions.c.idempotency_key == request.idempotency_key)
        row = connection.execute(query).mappings().first()
        if row is None:
            return None
        if row["request_sha256"] != request.sha256:
            raise IdempotencyMismatch()
        job_id: str = row["job_id"]
        gone = select(removed_jobs.c.removed_at).where(removed_jobs.c.id == job_id)
        if removed_at := connection.execute(gone).scalar():
            raise NotPossibleNow(
                f"this Idempotency-Key made job {job_id}, which was removed at {removed_at:%Y-%m-%d %H:%M}Z; "
                "use a new key for a new job"
            )
        return job_id

    def _note(self, connection: Connection, deed: AuditAction) -> None:
        audit_log.append(connection, deed, self._clock.now())


def _require_source(connection: Connection, event: Submitted) -> None:
    """Refuse a job that resumes from a job whose checkpoints were removed, maybe since its job file was checked.

    Raises:
        BadJobFile: they were removed.
    """
    checkpoint = event.spec.get("holdfast", {}).get("checkpoint") or {}
    if (source := checkpoint.get("from")) is None:
        return
    gone = removed_jobs.c.id == source, removed_jobs.c.with_checkpoints
    if connection.execute(select(removed_jobs.c.id).where(*gone)).first():
        why = f"job {source} was removed with its checkpoints; leave from out, or name another job"
        raise BadJobFile((Flaw("#/holdfast/checkpoint/from", why),))


def _require(connection: Connection, job_id: str) -> None:
    """Whether there is such a job; not by its cached row, which is what is rebuilt from here."""
    if connection.execute(select(jobs.c.id).where(jobs.c.id == job_id)).first() is None:
        raise NotFound(f"there is no job {job_id}")


def marks_of(connection: Connection, job_ids: Collection[str]) -> dict[str, dict[int, int]]:
    """The highest report taken of every attempt, by job and attempt; jobs without are left out."""
    columns = report_marks.c.job_id, report_marks.c.attempt, report_marks.c.n
    query = select(*columns).where(report_marks.c.job_id.in_(job_ids))
    found: dict[str, dict[int, int]] = {}
    for job_id, attempt, n in connection.execute(query):
        found.setdefault(job_id, {})[attempt] = n
    return found


def recorded(row: Any) -> Recorded:
    """The event of a row of `job_events`."""
    event = decode(row["kind"], row["at"], row["body"])
    names = row["kind"], row["source"]
    return Recorded(row["cursor"], row["job_id"], row["seq"], row["recorded_at"], *names, event)
