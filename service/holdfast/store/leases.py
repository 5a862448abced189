"""Leases: which jobs are due for a poll, and which replica processes them.

A lease distributes the work and protects nothing. The key of the journal prevents conflicting
writes of two replicas that poll the same job at once.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import Engine as Database
from sqlalchemy import func, or_, select, update

from holdfast.domain.events import Finished
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import State
from holdfast.store.database import reading, writing
from holdfast.store.tables.jobs import job_events, jobs, watches


class LeaseTable:
    """The jobs that are polled."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def due_engines(self, now: datetime, without: Collection[str] = ()) -> frozenset[Engine]:
        """Return the engines with due jobs; usually there are none, and nothing is to be claimed."""
        due = watches.c.due_at <= now, watches.c.job_id.not_in(without)
        query = select(watches.c.engine).where(*due).distinct()
        with reading(self._database) as connection:
            return frozenset(map(Engine, connection.execute(query).scalars()))

    def claim(
        self,
        engine: Engine,
        now: datetime,
        lease_s: float,
        limit: int,
        without: Collection[str] = (),
    ) -> list[str]:
        """Lease due jobs of an engine to the caller until `now + lease_s`, the longest due first.

        Jobs in `without` are not leased.
        """
        if limit <= 0:
            return []
        due = (
            select(watches.c.job_id)
            .where(
                watches.c.engine == engine.value,
                watches.c.due_at <= now,
                watches.c.job_id.not_in(without),
            )
            .order_by(watches.c.due_at)
            .limit(limit)
        )
        with writing(self._database) as connection:
            claimed = list(connection.execute(due).scalars())
            until = now + timedelta(seconds=lease_s)
            connection.execute(
                update(watches).where(watches.c.job_id.in_(claimed)).values(due_at=until)
            )
        return claimed

    def due_by(self, moment: datetime) -> dict[str, int]:
        """Jobs that are due, or whose lease ends, by a moment; with the newest event of each."""
        query = select(jobs.c.id, jobs.c.seq).join(watches, watches.c.job_id == jobs.c.id)
        with reading(self._database) as connection:
            rows = connection.execute(query.where(watches.c.due_at <= moment))
            return {row.id: row.seq for row in rows}

    def release(
        self,
        job_id: str,
        *,
        leased_until: datetime,
        due_at: datetime,
        seen_at: datetime | None,
        trouble: str | None,
    ) -> None:
        """Schedule the next poll of a job and record the result of this one.

        `seen_at` is the start of the observation, so that it includes all events before; None,
        after a failed one, keeps that of the last. A job that was nudged since it was leased stays
        due at once.
        """
        mine = update(watches).where(watches.c.job_id == job_id)
        unmoved = watches.c.due_at == leased_until
        with writing(self._database) as connection:
            connection.execute(mine.values(trouble=trouble))
            connection.execute(mine.where(unmoved).values(due_at=due_at))
            if seen_at:
                newer = or_(watches.c.seen_at.is_(None), watches.c.seen_at < seen_at)
                connection.execute(mine.where(newer).values(seen_at=seen_at))

    def remove(self, job_id: str) -> None:
        """Stop polling a job that has ended."""
        with writing(self._database) as connection:
            connection.execute(watches.delete().where(watches.c.job_id == job_id))

    def make_due(self, job_id: str, now: datetime) -> None:
        """Make a job due at once."""
        with writing(self._database) as connection:
            connection.execute(update(watches).where(watches.c.job_id == job_id).values(due_at=now))

    def make_all_due(self, job_ids: Collection[str], now: datetime) -> None:
        """Make several jobs due at once."""
        if job_ids:
            mine = update(watches).where(watches.c.job_id.in_(job_ids))
            with writing(self._database) as connection:
                connection.execute(mine.values(due_at=now))

    def count(self, engine: Engine) -> int:
        """The number of polled jobs of an engine, without paused ones."""
        polled = watches.join(jobs, jobs.c.id == watches.c.job_id)
        mine = (
            select(func.count())
            .select_from(polled)
            .where(watches.c.engine == engine.value, jobs.c.status != State.PAUSED.value)
        )
        with reading(self._database) as connection:
            return connection.execute(mine).scalar_one()

    def list_jobs(self) -> list[str]:
        """The jobs that are polled."""
        with reading(self._database) as connection:
            return list(connection.execute(select(watches.c.job_id)).scalars())

    def ended_since(self, at: datetime) -> list[str]:
        """The jobs whose end was recorded at `at` or later."""
        ends = select(job_events.c.job_id).where(
            job_events.c.kind == Finished.__name__, job_events.c.recorded_at >= at
        )
        with reading(self._database) as connection:
            return list(connection.execute(ends).scalars())

    def next_due(self) -> datetime | None:
        """When the next job is due; None without polled jobs."""
        with reading(self._database) as connection:
            due: datetime | None = connection.execute(select(func.min(watches.c.due_at))).scalar()
        return due
