"""The queue of checkpoint retention: when stores are due, leases and results.

A job has a row if the service deletes its old checkpoints. A lease distributes the work and
protects nothing: two replicas that process one store at once delete the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

from holdfast_worker.protocol.store_usage import NO_USAGE, StoreUsage
from sqlalchemy import Connection, Engine, insert, select, update

from holdfast.domain.charges.charges import UNKNOWN_STORE, KnownStore
from holdfast.domain.charges.store_usage import DatedUsage
from holdfast.store.database import reading, writing
from holdfast.store.tables.billing import ledgers
from holdfast.store.tables.jobs import job_events
from holdfast.store.tables.launches import store_places, store_request_days, upkeep

_COUNTERS: Final = ("store_gets", "store_lists", "store_deletes")


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

    def add_requests(self, job_id: str, usage: StoreUsage, day: date) -> None:
        """Count requests of the service to the store of a job; without a row they are not counted.

        `day`: in UTC.
        """
        counts = usage.gets, usage.lists, usage.deletes
        numbers = dict(zip(_COUNTERS, counts, strict=True))
        mine, of_day = upkeep.c.job_id == job_id, store_request_days.c.day == day.isoformat()
        that_day = of_day, store_request_days.c.job_id == job_id
        with writing(self._engine) as connection:
            more = {name: upkeep.c[name] + number for name, number in numbers.items()}
            if not connection.execute(update(upkeep).where(mine).values(more)).rowcount:
                return
            more = {name: store_request_days.c[name] + number for name, number in numbers.items()}
            if not connection.execute(
                update(store_request_days).where(*that_day).values(more)
            ).rowcount:
                row = {"job_id": job_id, "day": day.isoformat(), **numbers}
                connection.execute(insert(store_request_days).values(row))
            stale = update(ledgers).where(ledgers.c.job_id == job_id).values(charged_by="")
            connection.execute(stale)

    def requests(self, job_id: str) -> StoreUsage:
        """The counted requests of the service to the store of a job."""
        with reading(self._engine) as connection:
            return read_requests(connection, [job_id]).get(job_id, NO_USAGE)

    def known_store(self, job_id: str, store: str) -> KnownStore:
        """What the service knows of the store of a job; `store` is empty without one."""
        with reading(self._engine) as connection:
            return known_stores(connection, {job_id: store})[job_id]

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
            known = connection.execute(select(store_places.c.place).where(mine)).scalar()
            if known == place:
                return
            if known is None:
                connection.execute(insert(store_places).values(bucket=bucket, place=place))
            else:
                connection.execute(update(store_places).where(mine).values(place=place))
            # What the jobs of this store cost beside their nodes depends on its place.
            url = job_events.c.body["spec", "holdfast", "checkpoint", "store"].as_string()
            first = job_events.c.seq == 1, url.startswith(bucket, autoescape=True)
            of_store = ledgers.c.job_id.in_(select(job_events.c.job_id).where(*first))
            connection.execute(update(ledgers).where(of_store).values(charged_by=""))

    def _release(self, lease: RetentionLease, due_at: datetime | None, **result: Any) -> None:
        mine = update(upkeep).where(upkeep.c.job_id == lease.job_id)
        with writing(self._engine) as connection:
            if result:
                connection.execute(mine.values(**result))
            # A replica that leased the store after this lease expired schedules the next run
            # itself.
            connection.execute(mine.where(upkeep.c.due_at == lease.until).values(due_at=due_at))


def known_stores(connection: Connection, stores: Mapping[str, str]) -> dict[str, KnownStore]:
    """What the service knows of the stores of jobs, by job; a store is empty without one."""
    job_ids = [job_id for job_id, store in stores.items() if store]
    if not job_ids:
        return dict.fromkeys(stores, UNKNOWN_STORE)
    requests = read_requests(connection, job_ids)
    days: dict[str, list[DatedUsage]] = {}
    table = store_request_days.c
    query = select(table.job_id, *(table[name] for name in _COUNTERS), table.day)
    for row in connection.execute(query.where(table.job_id.in_(job_ids)).order_by(table.day)):
        used = DatedUsage(0, date.fromisoformat(row.day), _usage(row))
        days.setdefault(row.job_id, []).append(used)
    places = read_places(connection)
    return {
        job_id: KnownStore(
            requests.get(job_id, NO_USAGE),
            tuple(days.get(job_id, ())),
            place_in(places, store),
        )
        for job_id, store in stores.items()
    }


def read_requests(connection: Connection, job_ids: Iterable[str]) -> dict[str, StoreUsage]:
    """The counted requests of the service by job."""
    query = select(upkeep.c.job_id, *(upkeep.c[name] for name in _COUNTERS))
    query = query.where(upkeep.c.job_id.in_(list(job_ids)))
    return {row.job_id: _usage(row) for row in connection.execute(query)}


def read_places(connection: Connection) -> dict[str, str]:
    """The known places of stores, by bucket."""
    return {row.bucket: row.place for row in connection.execute(select(store_places))}


def place_in(places: Mapping[str, str], store: str) -> str:
    """The place of a store among those of `read_places`; empty if unknown, and without a store."""
    return places.get(_bucket(store), "")


def _usage(row: Any) -> StoreUsage:
    return StoreUsage(gets=row.store_gets, lists=row.store_lists, deletes=row.store_deletes)


def _bucket(store: str) -> str:
    """The bucket of a store, without the prefix in it."""
    scheme, _, rest = store.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"[:500]


def enqueue(connection: Connection, job_id: str, due_at: datetime) -> None:
    """Add a new job to the queue."""
    connection.execute(insert(upkeep).values(job_id=job_id, due_at=due_at))
