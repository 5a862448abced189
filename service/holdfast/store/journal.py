"""The journal: the append-only log of job events, and the only writer of job state.

The key `(job_id, seq)` is the only lock. The row in `jobs` is a cache of the folded state, written in the same
transaction as the events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

from holdfast_worker.protocol.policies import RetentionOwner
from holdfast_worker.protocol.reports import Report
from sqlalchemy import Connection, Engine, insert, select, update

from holdfast.domain.access.audit import Actor, AuditAction
from holdfast.domain.events import Event, Outcome, Resized, Submitted, decode
from holdfast.domain.jobfile.spec import engine_of
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import create_job
from holdfast.errors import (
    BadJobFile,
    HoldfastError,
    IdempotencyMismatch,
    NotFound,
    NotPossibleNow,
    ValidationIssue,
)
from holdfast.ports import Clock
from holdfast.store import audit_log, event_log, job_index, retention_queue
from holdfast.store.budgets import Budgets, enforce_budgets
from holdfast.store.database import reading, writing
from holdfast.store.job_queue import JobQueue, enforce_quotas, has_quotas, track_queue
from holdfast.store.notifications.channels import insert_channels as put_channels
from holdfast.store.report_ingest import BatchResult, ReportBatch, ingest_batches
from holdfast.store.secrets import insert_secrets as put_secrets
from holdfast.store.sweeps import Sweeps, enforce_sweep
from holdfast.store.tables.jobs import (
    job_events,
    jobs,
    removed_jobs,
    report_marks,
    submissions,
    watches,
)


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event as recorded in the journal."""

    cursor: int
    """Its position among the events of all jobs."""
    job_id: str
    seq: int
    recorded_at: datetime
    kind: str
    """The name of the event, including those that this version does not know."""
    source: str
    """The source of the event."""
    event: Event


@dataclass(frozen=True, slots=True)
class SubmissionRequest:
    """Identity of a submission, so that a repeated request returns the same response."""

    idempotency_key: str
    sha256: str
    """Digest of the whole request."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of a batch of reports."""

    next: int
    """Number of the next expected report of this attempt."""
    job: Job
    """The job after the batch."""


@dataclass(frozen=True, slots=True)
class AppendedJob:
    """A job after events were appended to it."""

    job: Job
    is_changed: bool
    """Whether there were any."""


AppendResult: TypeAlias = AppendedJob | HoldfastError
"""The job after the append, or why nothing was appended."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job."""

    seq: int
    """Number of its newest event."""
    has_ended: bool
    marks: Mapping[int, int]
    """The highest recorded report, by attempt."""


class Journal:
    """The event log of all jobs, with the folded state of each."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    @property
    def budgets(self) -> Budgets:
        """The budgets of projects and users."""
        return Budgets(self._engine, self._clock)

    @property
    def sweeps(self) -> Sweeps:
        """The sweeps, and the turns and budgets of their jobs."""
        return Sweeps(self._engine)

    @property
    def queue(self) -> JobQueue:
        """The queue of waiting jobs, with its quotas."""
        return JobQueue(self._engine, self._clock)

    def submit(
        self,
        job_id: str,
        event: Submitted,
        request: SubmissionRequest | None = None,
        sealed: str | None = None,
        tidied_by: RetentionOwner | None = None,
        *,
        channels: Sequence[Mapping[str, Any]] = (),
        actor: Actor | None = None,
    ) -> Job:
        """Record a new job with its secrets, or return the job of the same earlier request.

        `tidied_by` deletes its old checkpoints; None if it makes none. `channels` are rows of
        `Channels.rows_for_job` for its notifications. `actor` is the actor in the audit log, if any.

        Raises:
            IdempotencyMismatch: the key was used for a different request.
            NotPossibleNow: the job of the same earlier request was removed.
            StaleWrite: the id is in use.
            BudgetSpent: the budget of its project or owner is spent for this month.
            BadJobFile: the checkpoints that it resumes from were removed.
        """
        with writing(self._engine) as connection:
            if request and (earlier := self._earlier_job_id(connection, request)):
                return event_log.read(connection, earlier)
            _require_source(connection, event)
            job = create_job(job_id, event)
            enforce_budgets(connection, job, [event], self._clock.now())
            event_log.write(connection, job.id, [event], first_seq=1, now=self._clock.now())
            row = {"id": job.id, "submitted_at": job.submitted_at, **event_log.job_row(job)}
            payers = {"project": job.project, "owner": job.owner}
            listed = job_index.index_columns(job)
            connection.execute(insert(jobs).values(**row, **payers, **listed, observed_seq=job.seq))
            job_index.insert_tags(connection, job)
            engine = engine_of(event.spec.get("resources", {}))
            if has_quotas(connection):
                track_queue(connection, job, [event], event.at)
            watch = {"job_id": job.id, "engine": engine.value, "due_at": event.at}
            connection.execute(insert(watches).values(**watch))
            if tidied_by is RetentionOwner.SERVICE:
                retention_queue.enqueue(connection, job_id, event.at)
            if sealed is not None:
                put_secrets(connection, job_id, sealed)
            put_channels(connection, channels)
            if request:
                key = {"idempotency_key": request.idempotency_key, "request_sha256": request.sha256}
                connection.execute(insert(submissions).values(**key, job_id=job.id, at=event.at))
            if actor:
                self._audit(connection, actor.audit_action("job.submit", job_id, after=payers))
        return job

    def find_submission(self, request: SubmissionRequest) -> Job | None:
        """The job of the same earlier request; None if the request is new.

        Raises:
            IdempotencyMismatch: the key was used for a different request.
            NotPossibleNow: that job was removed.
        """
        with reading(self._engine) as connection:
            earlier = self._earlier_job_id(connection, request)
            return event_log.read(connection, earlier) if earlier else None

    def read(self, job_id: str) -> Job:
        """The current state of a job.

        Raises:
            NotFound: the job does not exist.
        """
        with reading(self._engine) as connection:
            return event_log.read(connection, job_id)

    def append(self, job: Job, events: Sequence[Event], action: AuditAction | None = None) -> Job:
        """Append `events`, which were decided from `job` as it was read, and return the job.

        `action` is written to the audit log in the same transaction; None: no entry.

        Raises:
            StaleWrite: the job has changed since, or the quotas have no room for it any more; nothing was
                written.
            IllegalTransition: an event cannot follow; nothing was written.
            BudgetSpent: the events start something, and the budget is spent for this month; nothing was
                written.
        """
        if not events:
            return job
        with writing(self._engine) as connection:
            after = _record(connection, job, events, self._clock.now())
            if action:
                self._audit(connection, action)
        return after

    def append_each(
        self,
        job_ids: Sequence[str],
        decide: Callable[[Job], Sequence[Event]],
        action: Callable[[Job], AuditAction],
    ) -> dict[str, AppendResult]:
        """Append the events that `decide` returns for each job, in one transaction.

        `action` returns its entry in the audit log. A refusal concerns its job alone.
        """
        results: dict[str, AppendResult] = {}
        now = self._clock.now()
        with writing(
            self._engine
        ) as connection:  # Exclusive, so that no other writer changes them.
            for job_id in job_ids:
                # Each step below refuses before it writes.
                try:
                    job = event_log.read(connection, job_id)
                    events = decide(job)
                    after = _record(connection, job, events, now) if events else job
                except HoldfastError as error:
                    results[job_id] = error
                    continue
                if events:
                    self._audit(connection, action(job))
                results[job_id] = AppendedJob(after, bool(events))
        return results

    def ingest(
        self,
        job_id: str,
        attempt: int,
        reports: Iterable[Report],
        incarnation: str | None = None,
        posted_at: datetime | None = None,
        *,
        oldest: int | None = None,
    ) -> IngestResult:
        """Record the reports that continue those of `attempt`, and return the next expected number.

        Earlier recorded reports are skipped. Reports after a gap are not recorded, and the result contains the
        number to continue with. A gap is accepted only before the report numbered `oldest`, since its reports no
        longer exist. `incarnation` is the sender if the service assigns attempts; None if the launcher does.
        `posted_at` is the upload time in the checkpoint store; None: they arrived directly.

        Raises:
            NotFound: the job does not exist.
            Fenced: a newer worker had replaced the sender; nothing was recorded.
            NotRegistered: the sender is not registered for this attempt; nothing was recorded.
            BadReport: a report is invalid; nothing of the batch was recorded.
        """
        batch = ReportBatch(
            job_id=job_id,
            attempt=attempt,
            reports=tuple(reports),
            incarnation=incarnation,
            posted_at=posted_at,
            oldest=oldest,
        )
        with writing(self._engine) as connection:
            [result] = ingest_batches(connection, [batch], self._clock.now())
            if isinstance(result, HoldfastError):
                raise result
            return IngestResult(result.next, result.job or event_log.read(connection, job_id))

    def ingest_reports(self, batches: Sequence[ReportBatch]) -> list[BatchResult]:
        """Record several batches in one transaction, and return their results in order.

        Raises:
            StaleWrite: an event conflicts with the log; nothing was recorded.
            IllegalTransition: an event cannot follow; nothing was recorded.
            StoreUnavailable: the database is unavailable.
        """
        with writing(self._engine) as connection:
            return ingest_batches(connection, batches, self._clock.now())

    def marks(self, job_id: str) -> dict[int, int]:
        """The highest recorded report of a job, by attempt."""
        with reading(self._engine) as connection:
            return marks_of(connection, [job_id]).get(job_id, {})

    def progress(self, job_ids: Collection[str]) -> dict[str, JobProgress]:
        """The progress of each of these jobs."""
        query = select(jobs.c.id, jobs.c.seq, jobs.c.status).where(jobs.c.id.in_(job_ids))
        with reading(self._engine) as connection:
            marks = marks_of(connection, job_ids)
            return {
                job_id: JobProgress(seq, status in list(Outcome), marks.get(job_id, {}))
                for job_id, seq, status in connection.execute(query)
            }

    def events(self, job_id: str, *, after_seq: int = 0) -> list[RecordedEvent]:
        """The events of a job in order.

        Raises:
            NotFound: the job does not exist.
        """
        query = select(job_events).where(
            job_events.c.job_id == job_id, job_events.c.seq > after_seq
        )
        with reading(self._engine) as connection:
            _require_job(connection, job_id)
            return [
                recorded_event(row)
                for row in connection.execute(query.order_by(job_events.c.seq)).mappings()
            ]

    def submission(self, job_id: str) -> Submitted:
        """The submission of a job, with the resources of its newest resize.

        Raises:
            NotFound: the job does not exist.
        """
        with reading(self._engine) as connection:
            found = event_log.submissions(connection, [job_id])
        if job_id not in found:
            raise NotFound(f"there is no job {job_id}")
        return found[job_id]

    def launches_of_removed(self, job_id: str) -> int:
        """Number of the last launch of a removed job; 0 if it does not exist."""
        query = select(removed_jobs.c.launches).where(removed_jobs.c.id == job_id)
        with reading(self._engine) as connection:
            return connection.execute(query).scalar() or 0

    def refold(self, job_id: str) -> Job:
        """Fold the events of a job again, without changing the cached row.

        Raises:
            NotFound: the job does not exist.
        """
        with reading(self._engine) as connection:
            _require_job(connection, job_id)
            return event_log.refold(connection, job_id)

    def is_inconsistent(self, job_id: str) -> bool:
        """Whether the cached row differs from the folded events."""
        return self.refold(job_id) != self.read(job_id)

    def rebuild(self, job_id: str) -> Job:
        """Fold the events of a job again and correct the cached row."""
        job = self.refold(job_id)
        with writing(self._engine) as connection:
            # A row that has changed since is newer than this fold.
            mine = update(jobs).where(jobs.c.id == job_id, jobs.c.seq <= job.seq)
            if connection.execute(mine.values(**event_log.job_row(job))).rowcount:
                job_index.index_again(connection, job)
        return job

    def rebuild_stale(self) -> int:
        """Rebuild all cached rows of other versions and return their number.

        Otherwise, readers would fold them.
        """
        with reading(self._engine) as connection:
            rows = connection.execute(select(jobs.c.id, jobs.c.fold, jobs.c.name))
            stale = [r.id for r in rows if r.name is None or event_log.is_stale(r.fold)]
        for job_id in stale:
            self.rebuild(job_id)
        return len(stale)

    def _earlier_job_id(self, connection: Connection, request: SubmissionRequest) -> str | None:
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
                f"this Idempotency-Key belongs to job {job_id}, which was removed at {removed_at:%Y-%m-%d %H:%M}Z; "
                "use a new key for a new job"
            )
        return job_id

    def _audit(self, connection: Connection, action: AuditAction) -> None:
        audit_log.append(connection, action, self._clock.now())


def _require_source(connection: Connection, event: Submitted) -> None:
    """Reject a job that resumes from a job whose checkpoints were removed.

    They may have been removed since its job file was checked.

    Raises:
        BadJobFile: they were removed.
    """
    checkpoint = event.spec.get("holdfast", {}).get("checkpoint") or {}
    if (source := checkpoint.get("from")) is None:
        return
    gone = removed_jobs.c.id == source, removed_jobs.c.with_checkpoints
    if connection.execute(select(removed_jobs.c.id).where(*gone)).first():
        why = f"job {source} was removed with its checkpoints; leave from out, or name another job"
        raise BadJobFile((ValidationIssue("#/holdfast/checkpoint/from", why),))


def _require_job(connection: Connection, job_id: str) -> None:
    """Require that the job exists, even if its cached row cannot be read.

    Raises:
        NotFound: it does not exist.
    """
    if connection.execute(select(jobs.c.id).where(jobs.c.id == job_id)).first() is None:
        raise NotFound(f"there is no job {job_id}")


def marks_of(connection: Connection, job_ids: Collection[str]) -> dict[str, dict[int, int]]:
    """The highest recorded report of every attempt, by job and attempt.

    Jobs without reports are omitted.
    """
    columns = report_marks.c.job_id, report_marks.c.attempt, report_marks.c.n
    query = select(*columns).where(report_marks.c.job_id.in_(job_ids))
    found: dict[str, dict[int, int]] = {}
    for job_id, attempt, n in connection.execute(query):
        found.setdefault(job_id, {})[attempt] = n
    return found


def recorded_event(row: Any) -> RecordedEvent:
    """The event of a row of `job_events`."""
    event = decode(row["kind"], row["at"], row["body"])
    names = row["kind"], row["source"]
    return RecordedEvent(
        row["cursor"], row["job_id"], row["seq"], row["recorded_at"], *names, event
    )


def _record(connection: Connection, job: Job, events: Sequence[Event], now: datetime) -> Job:
    """Record events within all budgets, turns and quotas, and return the job after them.

    Raises:
        StaleWrite, IllegalTransition, BudgetSpent: see `Journal.append`.
    """
    resized = next((event for event in events if isinstance(event, Resized)), None)
    priced = replace(job, micros_per_hour=resized.micros_per_hour) if resized else job
    enforce_budgets(connection, priced, events, now)
    enforce_sweep(connection, priced, events, now)
    is_queued = has_quotas(connection)
    if is_queued:
        enforce_quotas(connection, job, events, now)
    after = event_log.record(connection, job, events, now)
    if is_queued:
        track_queue(connection, after, events, now)
    return after
