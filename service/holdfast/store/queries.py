"""Read queries for lists, streams and bills."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from holdfast_worker.protocol.reports import RUNTIME_METRIC_PREFIX
from sqlalchemy import Engine, Text, cast, func, select, tuple_

from holdfast.domain.billing.bill import LatestPoint
from holdfast.domain.events import Finished, Outcome, Submitted
from holdfast.domain.jobs.job import IN_TRAINING, Job
from holdfast.domain.jobs.reports import Point
from holdfast.domain.jobs.selection import JobFilter
from holdfast.errors import BadRequest
from holdfast.store import event_log
from holdfast.store.database import reading
from holdfast.store.job_index import conditions
from holdfast.store.journal import RecordedEvent, marks_of, recorded_event
from holdfast.store.tables.jobs import job_events, jobs, metric_points, report_marks, watches

RECENT_REPORTS: Final = 64
"""Newest reports of an attempt in which runtime metrics are searched; the worker adds them to about every tenth point.
A lower value misses runs that log every step; a higher value reads more rows per scrape."""
MAX_CACHED_JOBS: Final = 2000
"""Unfinished jobs that are cached, some 10 kB each. A lower value parses all jobs at each scrape; a higher value uses more memory."""


@dataclass(frozen=True, slots=True)
class JobsPage:
    """A page of jobs, newest first."""

    jobs: tuple[Job, ...]
    next: str | None
    """Cursor of the next page; None on the last one."""
    total: int
    """Number of jobs on all pages."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A point with runtime metrics."""

    at: datetime
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class LastObservation:
    """The last observation of a job at its launcher."""

    seen_at: datetime | None
    """Start of the last successful observation; None before the first."""
    error: str | None
    """Why the last observation failed; None if it succeeded."""


class Queries:
    """Read-only queries over the journal."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unfinished: Mapping[str, Job] = {}
        """Unfinished jobs as last read. The number of its newest event determines a job."""

    def jobs(
        self, *, limit: int, after: str | None = None, where: JobFilter = JobFilter()
    ) -> JobsPage:
        """A page of jobs, newest first: those that match all given conditions.

        Raises:
            BadRequest: `after` is not a cursor of a previous page.
        """
        within = [*conditions(where, self._engine.dialect.name)]
        order = jobs.c.submitted_at.desc(), jobs.c.id.desc()
        query = select(jobs.c.id, jobs.c.fold).where(*within).order_by(*order).limit(limit + 1)
        whole = select(func.count()).select_from(jobs).where(*within)
        with reading(self._engine) as connection:
            if after is not None:
                place = connection.execute(
                    select(jobs.c.submitted_at, jobs.c.id).where(jobs.c.id == after)
                ).first()
                if place is None:
                    raise BadRequest(
                        f"cursor {after!r} is not a cursor of a previous page; start without a cursor"
                    )
                query = query.where(tuple_(jobs.c.submitted_at, jobs.c.id) < tuple_(*place))
            rows = connection.execute(query).all()
            found = [event_log.load(connection, row.id, row.fold) for row in rows]
            more = len(found) > limit
            total = connection.execute(whole).scalar_one() if more or after else len(found)
        return JobsPage(tuple(found[:limit]), found[limit - 1].id if more else None, total)

    def matching(
        self, where: JobFilter, *, limit: int, ids: Collection[str] | None = None
    ) -> JobsPage:
        """The newest jobs that match, among `ids` or all, without a cursor."""
        within = [*conditions(where, self._engine.dialect.name)]
        if ids is not None:
            within.append(jobs.c.id.in_(ids))
        order = jobs.c.submitted_at.desc(), jobs.c.id.desc()
        query = select(jobs.c.id, jobs.c.fold).where(*within).order_by(*order).limit(limit)
        whole = select(func.count()).select_from(jobs).where(*within)
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
            found = tuple(event_log.load(connection, row.id, row.fold) for row in rows)
            total = connection.execute(whole).scalar_one() if len(found) == limit else len(found)
        return JobsPage(found, None, total)

    def submissions(self, job_ids: Collection[str]) -> dict[str, Submitted]:
        """The submissions of jobs with their newest resources; unknown jobs are omitted."""
        with reading(self._engine) as connection:
            return event_log.submissions(connection, job_ids)

    def names(self, job_ids: Collection[str]) -> dict[str, str]:
        """The names of jobs; jobs that do not exist are omitted."""
        query = select(jobs.c.id, jobs.c.name).where(jobs.c.id.in_(job_ids))
        with reading(self._engine) as connection:
            return {row.id: row.name or "" for row in connection.execute(query)}

    def all_ids(self) -> list[str]:
        """All jobs, oldest first."""
        with reading(self._engine) as connection:
            return list(connection.execute(select(jobs.c.id).order_by(jobs.c.id)).scalars())

    def live_ids(self) -> list[str]:
        """All jobs that have not ended."""
        live = select(jobs.c.id).where(jobs.c.status.not_in(list(Outcome)))
        with reading(self._engine) as connection:
            return list(connection.execute(live).scalars())

    def unfinished(self, limit: int) -> list[Job]:
        """The oldest jobs that have not ended."""
        live = jobs.c.status.not_in(list(Outcome))
        query = select(jobs.c.id, jobs.c.seq).where(live).order_by(jobs.c.id).limit(limit)
        known = self._unfinished
        with reading(self._engine) as connection:
            seqs = {row.id: row.seq for row in connection.execute(query)}
            found = {
                job_id: known[job_id]
                for job_id, seq in seqs.items()
                if job_id in known and known[job_id].seq == seq
            }
            changed = jobs.c.id.in_([job_id for job_id in seqs if job_id not in found])
            rows = connection.execute(select(jobs.c.id, jobs.c.fold).where(changed)).all()
            found |= {row.id: event_log.load(connection, row.id, row.fold) for row in rows}
        self._unfinished = dict(islice(found.items(), MAX_CACHED_JOBS))
        return [found[job_id] for job_id in seqs if job_id in found]

    def project_of(self, job_id: str) -> str | None:
        """The project of a job; None if it does not exist."""
        with reading(self._engine) as connection:
            return connection.execute(select(jobs.c.project).where(jobs.c.id == job_id)).scalar()

    def ended_at(self, job_id: str) -> datetime | None:
        """When the end of a job was recorded; None before that."""
        over = select(jobs.c.id).where(jobs.c.id == job_id, jobs.c.status.in_(list(Outcome)))
        end = select(func.min(job_events.c.recorded_at)).where(
            job_events.c.job_id == job_id, job_events.c.kind == Finished.__name__
        )
        with reading(self._engine) as connection:
            if connection.execute(over).first() is None:
                return None
            return connection.execute(end).scalar()

    def stream(
        self,
        *,
        after: int,
        job_id: str | None = None,
        limit: int = 500,
        projects: Collection[str] | None = None,
    ) -> list[RecordedEvent]:
        """Events with a cursor greater than `after`, in commit order.

        Of one job or of all, in `projects` or in all.
        """
        query = select(job_events).where(job_events.c.cursor > after)
        if job_id is not None:
            query = query.where(job_events.c.job_id == job_id)
        if projects is not None:
            inside = select(jobs.c.id).where(jobs.c.project.in_(projects))
            query = query.where(job_events.c.job_id.in_(inside))
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(job_events.c.cursor).limit(limit)).mappings()
            return [recorded_event(row) for row in rows]

    def marks(self, job_ids: Collection[str]) -> dict[str, dict[int, int]]:
        """The highest recorded report of every attempt, by job and attempt.

        Jobs without reports are omitted.
        """
        with reading(self._engine) as connection:
            return marks_of(connection, job_ids)

    def newest_cursor(self) -> int:
        """The cursor of the newest event; 0 without events."""
        with reading(self._engine) as connection:
            return connection.execute(select(func.max(job_events.c.cursor))).scalar() or 0

    def latest_points(self, job_ids: Iterable[str]) -> dict[str, dict[int, LatestPoint]]:
        """The newest point of every attempt, by job and attempt; jobs without points are omitted."""
        # An attempt with points has a mark. A scan of all points would be slow.
        newest = (
            select(metric_points)
            .where(
                metric_points.c.job_id == report_marks.c.job_id,
                metric_points.c.attempt == report_marks.c.attempt,
            )
            .order_by(metric_points.c.n.desc())
            .limit(1)
        )
        query = select(
            report_marks.c.job_id,
            report_marks.c.attempt,
            newest.with_only_columns(metric_points.c.step).scalar_subquery(),
            newest.with_only_columns(metric_points.c.at).scalar_subquery(),
        ).where(report_marks.c.job_id.in_(list(job_ids)))
        found: dict[str, dict[int, LatestPoint]] = {}
        with reading(self._engine) as connection:
            for job_id, attempt, step, at in connection.execute(query):
                if step is not None:
                    found.setdefault(job_id, {})[attempt] = LatestPoint(step=step, at=at)
        return found

    def events(self, job_ids: Iterable[str]) -> dict[str, list[RecordedEvent]]:
        """The events of several jobs, each in order."""
        found: dict[str, list[RecordedEvent]] = {}
        if not (ids := list(job_ids)):
            return found
        query = select(job_events).where(job_events.c.job_id.in_(ids))
        with reading(self._engine) as connection:
            for row in connection.execute(
                query.order_by(job_events.c.job_id, job_events.c.seq)
            ).mappings():
                found.setdefault(row["job_id"], []).append(recorded_event(row))
        return found

    def points(self, job_id: str, *, limit: int) -> list[Point]:
        """The newest points of a job, oldest first."""
        query = select(metric_points).where(metric_points.c.job_id == job_id)
        order = metric_points.c.attempt.desc(), metric_points.c.n.desc()
        with reading(self._engine) as connection:
            rows = list(connection.execute(query.order_by(*order).limit(limit)).mappings())
        return [
            Point(
                attempt=row["attempt"],
                n=row["n"],
                at=row["at"],
                step=row["step"],
                values=row["values"],
            )
            for row in reversed(rows)
        ]

    def readings(self, job_ids: Collection[str] | None = None) -> dict[str, Reading]:
        """The newest runtime metrics of each job in training by its id, of some or all jobs.

        Jobs without recent ones are omitted.
        """
        newest = (
            select(metric_points)
            .where(
                metric_points.c.job_id == report_marks.c.job_id,
                metric_points.c.attempt == report_marks.c.attempt,
                metric_points.c.n > report_marks.c.n - RECENT_REPORTS,
                cast(metric_points.c["values"], Text).like(f'%"{RUNTIME_METRIC_PREFIX}%'),
            )
            .order_by(metric_points.c.n.desc())
            .limit(1)
        )
        query = (
            select(
                report_marks.c.job_id,
                newest.with_only_columns(metric_points.c.at).scalar_subquery(),
                newest.with_only_columns(metric_points.c["values"]).scalar_subquery(),
            )
            .join(jobs, jobs.c.id == report_marks.c.job_id)
            .where(jobs.c.status.in_(IN_TRAINING))
            .order_by(report_marks.c.job_id, report_marks.c.attempt)
        )
        if job_ids is not None:
            query = query.where(report_marks.c.job_id.in_(job_ids))
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        by_job = {job_id: (at, values) for job_id, at, values in rows}
        return {job_id: Reading(*found) for job_id, found in by_job.items() if found[1]}

    def last_observation(self, job_id: str) -> LastObservation:
        """The last observation of a job, and its current error."""
        return self.last_observations([job_id]).get(job_id, LastObservation(None, None))

    def last_observations(self, job_ids: Iterable[str]) -> dict[str, LastObservation]:
        """The last observations of jobs, and their current errors; ended jobs are omitted."""
        columns = watches.c.job_id, watches.c.seen_at, watches.c.trouble
        query = select(*columns).where(watches.c.job_id.in_(list(job_ids)))
        with reading(self._engine) as connection:
            rows = connection.execute(query)
            return {job_id: LastObservation(seen_at, trouble) for job_id, seen_at, trouble in rows}
