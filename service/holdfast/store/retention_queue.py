"""The queue of checkpoint retention: when stores are due, leases and results.

A job has a row if the service deletes its old checkpoints. A lease distributes the work and
protects nothing: two replicas that process one store at once delete the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from holdfast_worker.protocol.store_usage import NO_USAGE, StoreUsage
from sqlalchemy import Connection, Engine, insert, select, update

from holdfast.store.database import reading, writing
from holdfast.store.tables.launches import store_places, upkeep


@dataclass(frozen=True, slots=True)
class RetentionLease:
    """A store that is leased to this replica."""

    job_id: str
    until: datetime


@dataclass(frozen=True, slots=True)
class RetentionStatus:
    """The state of retention in one store."""

    last_run_at: datetime | None = None
    """End of the last successful run; None before the first."""
    error: str | None = None
    """Why the last run failed; None if it succeeded."""
    since: datetime | None = None
    """Time of the first of these failures; None without."""


class RetentionQueue:
    """The stores in which the service deletes old checkpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def claim(self, now: datetime, lease_s: float, limit: int) -> list[RetentionLease]:
        """Lease the stores that are due to the caller, the longest due first."""
        due = select(upkeep.c.job_id).where(upkeep.c.due_at <= now).order_by(upkeep.c.due_at)
        with reading(self._engine) as connection:
            if not connection.execute(due.limit(1)).first():
                return []  # The usual case needs no write transaction.
        until = now + timedelta(seconds=lease_s)
        with writing(self._engine) as connection:
            claimed = list(connection.execute(due.limit(limit)).scalars())
            mine = update(upkeep).where(upkeep.c.job_id.in_(claimed))
            connection.execute(mine.values(due_at=until))
        return [RetentionLease(job_id, until) for job_id in claimed]

    def mark_done(self, lease: RetentionLease, at: datetime, due_at: datetime | None) -> None:
        """Record a successful run; `due_at` None: no further run."""
        self._release(lease, due_at, tidied_at=at, trouble=None, since=None)

    def postpone(self, lease: RetentionLease, due_at: datetime) -> None:
        """Schedule the next run, without a result."""
        self._release(lease, due_at)

    def mark_failed(
        self, lease: RetentionLease, trouble: str, since: datetime, due_at: datetime | None
    ) -> None:
        """Record a failed run; `due_at` None: no further run."""
        self._release(lease, due_at, trouble=trouble, since=since)

    def retry(self, now: datetime) -> None:
        """Make all stores due whose last run failed, unless they were given up."""
        troubled = upkeep.c.trouble.is_not(None), upkeep.c.due_at.is_not(None)
        with writing(self._engine) as connection:
            connection.execute(update(upkeep).where(*troubled).values(due_at=now))

    def statuses(self, job_ids: Iterable[str]) -> dict[str, RetentionStatus]:
        """The state of retention by job; jobs without retention are omitted."""
        query = select(upkeep).where(upkeep.c.job_id.in_(list(job_ids)))
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings()
            return {
                row["job_id"]: RetentionStatus(row["tidied_at"], row["trouble"], row["since"])
                for row in rows
            }

    def add_requests(self, job_id: str, usage: StoreUsage) -> None:
        """Count requests of the service to the store of a job; without a row they are not counted."""
        counted = {
            upkeep.c.store_gets: upkeep.c.store_gets + usage.gets,
            upkeep.c.store_lists: upkeep.c.store_lists + usage.lists,
            upkeep.c.store_deletes: upkeep.c.store_deletes + usage.deletes,
        }
        with writing(self._engine) as connection:
            connection.execute(update(upkeep).where(upkeep.c.job_id == job_id).values(counted))

    def requests(self, job_id: str) -> StoreUsage:
        """The counted requests of the service to the store of a job."""
        columns = upkeep.c.store_gets, upkeep.c.store_lists, upkeep.c.store_deletes
        with reading(self._engine) as connection:
            row = connection.execute(select(*columns).where(upkeep.c.job_id == job_id)).first()
        return StoreUsage(gets=row[0], lists=row[1], deletes=row[2]) if row else NO_USAGE

    def place_of(self, store: str) -> str:
        """Where a store is, as it said at an earlier visit; empty if unknown."""
        query = select(store_places.c.place).where(store_places.c.bucket == _bucket(store))
        with reading(self._engine) as connection:
            return connection.execute(query).scalar() or ""

    def set_place(self, store: str, place: str) -> None:
        """Remember where a store is."""
        bucket = _bucket(store)
        mine = store_places.c.bucket == bucket
        with writing(self._engine) as connection:
            if not connection.execute(
                update(store_places).where(mine).values(place=place)
            ).rowcount:
                connection.execute(insert(store_places).values(bucket=bucket, place=place))

    def _release(self, lease: RetentionLease, due_at: datetime | None, **result: Any) -> None:
        mine = update(upkeep).where(upkeep.c.job_id == lease.job_id)
        with writing(self._engine) as connection:
            if result:
                connection.execute(mine.values(**result))
            # A replica that leased the store after this lease expired schedules the next run
            # itself.
            connection.execute(mine.where(upkeep.c.due_at == lease.until).values(due_at=due_at))


def _bucket(store: str) -> str:
    """The bucket of a store, without the prefix in it."""
    scheme, _, rest = store.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"[:500]


def enqueue(connection: Connection, job_id: str, due_at: datetime) -> None:
    """Add a new job to the queue."""
    connection.execute(insert(upkeep).values(job_id=job_id, due_at=due_at))
