"""Ingestion of reports: batches of many jobs, recorded in one transaction.

Rows are read and written many at once, as one JSON text per statement. Each row that SQLite reads
or writes by itself releases Python's lock, which takes a while to get back next to a busy event
loop: two hundred rows then take a second of waiting. PostgreSQL saves round trips.

Points are most of what workers report, and change no state: a batch of points neither reads nor
writes the fold of its job. A few queries read the state for all batches, and a few statements write
their results.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from holdfast_worker.protocol.reports import Report
from sqlalchemy import Connection, TextClause, func, select, text, update

from holdfast.domain.events import Event, Finished, Outcome
from holdfast.domain.jobs.job import LEAVING, Job, State
from holdfast.domain.jobs.reports import GpuReadings, Point, parse_report
from holdfast.errors import BadReport, Fenced, HoldfastError, NotFound, NotRegistered
from holdfast.store import event_log, incarnations
from holdfast.store.machines.gpu_health import save_faults, save_readings
from holdfast.store.tables.billing import ledgers
from holdfast.store.tables.jobs import job_events


@dataclass(frozen=True, slots=True)
class IngestState:
    """Stored state of a job, one of its attempts, and an incarnation."""

    status: str | None
    """State, or outcome once ended; None: the job does not exist."""
    mark: int
    """The last recorded report of the attempt; 0: none."""
    newest_incarnation: int | None
    """Number of the last registration; None: none."""
    incarnation: int | None
    """Number of this incarnation's registration; None: none."""
    attempt: int | None
    """Its assigned attempt; None: none yet."""
    drills: int = 0
    """Number of the job's pending drills, which may ask its worker to leave."""


IngestKey = tuple[str, int, str | None]
"""A job, an attempt, and an incarnation or None."""


def read_states(
    connection: Connection, questions: Iterable[IngestKey]
) -> dict[IngestKey, IngestState]:
    """The state of each key."""
    asked = list(dict.fromkeys(questions))
    found = connection.execute(_READ_STATES[connection.dialect.name], {"asked": json.dumps(asked)})
    rows: list[tuple[int, str | None, int | None, int | None, int | None, int | None, int | None]]
    rows = json.loads(found.scalar() or "[]")
    return {
        asked[place]: IngestState(status, mark or 0, newest, muster, attempt, drills or 0)
        for place, status, mark, newest, muster, attempt, drills in rows
    }


def add_points(connection: Connection, points: Sequence[tuple[str, Point]]) -> None:
    """Insert points, each with its job."""
    if points:
        rows = [
            (job_id, p.attempt, p.n, _time(p.at), p.step, json.dumps(p.values))
            for job_id, p in points
        ]
        connection.execute(_POINTS[connection.dialect.name], {"rows": json.dumps(rows)})


def set_marks(connection: Connection, marks: Iterable[tuple[str, int, int]]) -> None:
    """Store the highest recorded report of attempts: job, attempt and number."""
    if rows := sorted(marks):
        connection.execute(_MARKS[connection.dialect.name], {"rows": json.dumps(rows)})


def _time(at: datetime) -> str:
    """A time in UTC in the format in which SQLAlchemy stores it in SQLite."""
    return at.replace(tzinfo=None).isoformat(" ", "microseconds")


def _both(sqlite: str, postgresql: str) -> dict[str, TextClause]:
    return {"sqlite": text(sqlite), "postgresql": text(postgresql)}


_READ_STATES: Final = _both(
    """
    SELECT json_group_array(json_array(asked.key, jobs.status, marks.n,
        (SELECT max(n) FROM musters WHERE job_id = jobs.id), mine.n, mine.attempt,
        json_array_length(jobs.fold, '$.pending_drills')))
    FROM json_each(:asked) AS asked
    LEFT JOIN jobs ON jobs.id = json_extract(asked.value, '$[0]')
    LEFT JOIN report_marks AS marks ON marks.job_id = jobs.id AND marks.attempt = json_extract(asked.value, '$[1]')
    LEFT JOIN musters AS mine ON mine.job_id = jobs.id AND mine.incarnation = json_extract(asked.value, '$[2]')
    """,
    """
    SELECT CAST(json_agg(json_build_array(asked.place - 1, jobs.status, marks.n,
        (SELECT max(n) FROM musters WHERE job_id = jobs.id), mine.n, mine.attempt,
        json_array_length(jobs.fold -> 'pending_drills'))) AS text)
    FROM json_array_elements(CAST(:asked AS json)) WITH ORDINALITY AS asked(value, place)
    LEFT JOIN jobs ON jobs.id = asked.value ->> 0
    LEFT JOIN report_marks AS marks
        ON marks.job_id = jobs.id AND marks.attempt = CAST(asked.value ->> 1 AS integer)
    LEFT JOIN musters AS mine ON mine.job_id = jobs.id AND mine.incarnation = asked.value ->> 2
    """,
)

_POINTS: Final = _both(
    """
    INSERT INTO metric_points (job_id, attempt, n, at, step, "values")
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]')
    FROM json_each(:rows)
    """,
    """
    INSERT INTO metric_points (job_id, attempt, n, at, step, "values")
    SELECT value ->> 0, CAST(value ->> 1 AS integer), CAST(value ->> 2 AS bigint),
        CAST(value ->> 3 AS timestamp) AT TIME ZONE 'UTC', CAST(value ->> 4 AS bigint),
        CAST(value ->> 5 AS json)
    FROM json_array_elements(CAST(:rows AS json))
    """,
)

_MARKS: Final = _both(
    """
    INSERT INTO report_marks (job_id, attempt, n)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:rows) WHERE true
    ON CONFLICT (job_id, attempt) DO UPDATE SET n = excluded.n
    """,
    """
    INSERT INTO report_marks (job_id, attempt, n)
    SELECT value ->> 0, CAST(value ->> 1 AS integer), CAST(value ->> 2 AS bigint)
    FROM json_array_elements(CAST(:rows AS json))
    ON CONFLICT (job_id, attempt) DO UPDATE SET n = excluded.n
    """,
)

log_ = logging.getLogger(__name__)
_EXIT_STATES: Final = LEAVING | {State.PAUSED}
"""States in which workers are asked to exit."""
OUTDATED_SEQ: Final = -1
"""As the event number of a job's rows: no event has it, so that the rows are computed again."""
_ENDED: Final = frozenset(Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBatch:
    """Reports of one attempt from one worker."""

    job_id: str
    attempt: int
    reports: Sequence[Report]
    incarnation: str | None = None
    """The sender, if the service assigns attempts; None if the launcher does."""
    posted_at: datetime | None = None
    """Upload time in the checkpoint store; None: they arrived directly."""
    grace: timedelta | None = None
    """Time after the end of the job in which the batch is accepted; None: always."""
    oldest: int | None = None
    """Number of the oldest report that its sender still has; None if it is of an earlier version,
    which omits it."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of an accepted batch."""

    next: int
    """Number of the next expected report of this attempt."""
    job: Job | None
    """The current job if the batch contained an event of it, or its workers may have to exit; None: it
    continues unchanged."""


BatchResult: TypeAlias = Accepted | HoldfastError
"""The result of a batch, or the error that rejected it."""


def ingest_batches(
    connection: Connection, batches: Sequence[ReportBatch], now: datetime
) -> list[BatchResult]:
    """Ingest batches and return their results in order; a rejected one does not affect others.

    A rejection is NotFound, Fenced, NotRegistered or BadReport, as described in `Journal.ingest`.

    Raises:
        StaleWrite: an event conflicts with the log; nothing of this transaction may be kept.
        IllegalTransition: an event cannot follow; the same applies.
    """
    desk = _IngestTransaction(connection, now)
    desk.load_states(batches)
    results = [desk.ingest(batch) for batch in batches]
    desk.write()
    return results


@dataclass
class _IngestTransaction:
    """State of the jobs of one transaction, and what it writes at its end."""

    connection: Connection
    now: datetime
    states: dict[IngestKey, IngestState] = field(default_factory=dict)
    """State before this transaction."""
    status: dict[str, str] = field(default_factory=dict)
    """The current status of existing jobs."""
    drilled: set[str] = field(default_factory=set)
    """Jobs with pending drills."""
    marks: dict[tuple[str, int], int] = field(default_factory=dict)
    """The last report recorded in this transaction, by job and attempt."""
    points: list[tuple[str, Point]] = field(default_factory=list)
    gpus: list[tuple[str, GpuReadings]] = field(default_factory=list)
    folded: dict[str, Job] = field(default_factory=dict)
    """The current folds of jobs that were read."""
    ended_at: dict[str, datetime | None] = field(default_factory=dict)

    def load_states(self, batches: Sequence[ReportBatch]) -> None:
        """Read the state for all batches; the number of queries does not grow with theirs."""
        self.states = read_states(self.connection, map(_ingest_key, batches))
        for (job_id, _, _), known in self.states.items():
            if known.status is not None:
                self.status[job_id] = known.status
            if known.drills:
                self.drilled.add(job_id)
        late = {b.job_id for b in batches if b.grace is not None and self._has_ended(b.job_id)}
        if late:
            end = select(job_events.c.job_id, func.min(job_events.c.recorded_at))
            end = end.where(job_events.c.job_id.in_(late), job_events.c.kind == Finished.__name__)
            rows = self.connection.execute(end.group_by(job_events.c.job_id))
            self.ended_at = {job_id: ended_at for job_id, ended_at in rows}  # noqa: C416 - Rows are no pairs to mypy

    def ingest(self, batch: ReportBatch) -> BatchResult:
        """Ingest a batch after the previous ones, and return its result."""
        try:
            self._admit(batch)
            last, facts, points, gpus = self._parse_new_reports(batch)
        except (NotFound, Fenced, NotRegistered, BadReport) as refusal:
            return refusal  # Nothing of this batch has been written yet.
        if last > self._mark(batch):
            self.marks[batch.job_id, batch.attempt] = last
            self.points += [(batch.job_id, point) for point in points]
            self.gpus += [(batch.job_id, found) for found in gpus]
            self._record(batch.job_id, facts)
        return Accepted(last + 1, self._job_for_reply(batch.job_id, facts))

    def _admit(self, batch: ReportBatch) -> None:
        if batch.job_id not in self.status:
            raise NotFound(f"there is no job {batch.job_id}")
        ended_at = self.ended_at.get(batch.job_id)
        if batch.grace is not None and ended_at and self.now - ended_at > batch.grace:
            raise Fenced(ended_message(batch.job_id, ended_at))
        if batch.incarnation is not None and batch.posted_at is not None:
            mine = batch.job_id, batch.incarnation, batch.attempt
            incarnations.check_posted(self.connection, *mine, batch.posted_at)
        elif batch.incarnation is not None:
            known = self.states[_ingest_key(batch)]
            incarnations.check_current(
                known.incarnation, known.newest_incarnation, batch.attempt, known.attempt
            )

    def _parse_new_reports(
        self, batch: ReportBatch
    ) -> tuple[int, list[Event], list[Point], list[GpuReadings]]:
        """The last report recorded with this batch, and what new reports contain, by kind."""
        last = self._mark(batch)
        facts, points, gpus = list[Event](), list[Point](), list[GpuReadings]()
        for report in batch.reports:
            if report.attempt != batch.attempt:
                raise BadReport(f"report {report.n} is of attempt {report.attempt}")
            if report.n == batch.oldest and report.n > last + 1:
                # Such as after the restoration of a backup: the sender has removed reports that
                # were acknowledged.
                log_.warning(
                    "%s attempt %d: reports %d to %d are missing; the worker has only reports from %d on",
                    *(batch.job_id, batch.attempt, last + 1, report.n - 1, report.n),
                )
                last = report.n - 1
            if report.n != last + 1:
                continue
            last = report.n
            match parse_report(report):
                case None:
                    log_.warning(
                        "%s: report %d (%s) is of a newer worker and is skipped",
                        *(batch.job_id, report.n, report.kind),
                    )
                case Point() as point:
                    points.append(point)
                case GpuReadings() as found:
                    gpus.append(found)
                case fact:
                    facts.append(fact)
        return last, facts, points, gpus

    def _mark(self, batch: ReportBatch) -> int:
        before = self.states[_ingest_key(batch)].mark
        return self.marks.get((batch.job_id, batch.attempt), before)

    def _record(self, job_id: str, facts: Sequence[Event]) -> None:
        if facts:
            job = event_log.record(self.connection, self._job(job_id), facts, self.now)
            self.folded[job_id], self.status[job_id] = job, job.status
            save_faults(self.connection, job, facts, self.now)

    def _job_for_reply(self, job_id: str, facts: Sequence[Event]) -> Job | None:
        is_to_go = (
            self.status[job_id] in _EXIT_STATES or job_id in self.drilled or self._has_ended(job_id)
        )
        return self._job(job_id) if facts or is_to_go else None

    def _job(self, job_id: str) -> Job:
        if job_id not in self.folded:
            self.folded[job_id] = event_log.read(self.connection, job_id)
        return self.folded[job_id]

    def _has_ended(self, job_id: str) -> bool:
        return self.status.get(job_id) in _ENDED

    def write(self) -> None:
        """Write what remains: points, marks, and that bills of ended jobs have to be computed again."""
        add_points(self.connection, self.points)
        save_readings(self.connection, self.gpus)
        set_marks(self.connection, ((*mark, n) for mark, n in self.marks.items()))
        # Points are not events, but affect the bill.
        if outdated := {job_id for job_id, _ in self.marks if self._has_ended(job_id)}:
            # The rows stay until then: cached sums know their number.
            stale = update(ledgers).where(ledgers.c.job_id.in_(outdated)).values(seq=OUTDATED_SEQ)
            self.connection.execute(stale)


def _ingest_key(batch: ReportBatch) -> IngestKey:
    return batch.job_id, batch.attempt, batch.incarnation


def ended_message(job_id: str, ended_at: datetime) -> str:
    """The response to reports of a job that ended too long ago."""
    return f"job {job_id} ended at {ended_at:%Y-%m-%d %H:%M}Z; stop, no reports are accepted"
