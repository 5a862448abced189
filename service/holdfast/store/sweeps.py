"""Sweeps in the database: their jobs, turns and budgets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Engine, func, insert, select, update

from holdfast.domain.access.audit import AuditAction
from holdfast.domain.events import (
    Event,
    Guard,
    GuardTripped,
    LaunchRequested,
    Outcome,
    ResumeRequested,
)
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.sweeps.median_rule import StopMode, StopRule
from holdfast.domain.sweeps.sweep import Sweep, SweepBalance
from holdfast.errors import BudgetSpent, IdempotencyMismatch, NotFound, StaleWrite
from holdfast.store import audit_log, event_log
from holdfast.store.database import reading, writing
from holdfast.store.tables.jobs import jobs
from holdfast.store.tables.sweeps import sweeps

_IDLE: Final = (State.QUEUED.value, State.PAUSED.value, *map(str, Outcome))
"""States in which a job takes no turn of its sweep: it has no nodes, and none are requested."""
_IN_ORDER: Final = (jobs.c.submitted_at, jobs.c.fold["trial"].as_integer(), jobs.c.id)
"""The order of the combinations of a sweep, also if all were submitted at one moment."""


class Sweeps:
    """The sweeps of the service."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(
        self, sweep: Sweep, key: str | None, sha256: str, action: AuditAction, now: datetime
    ) -> Sweep:
        """Record a sweep, or return the one of the same earlier request.

        Raises:
            IdempotencyMismatch: the key was used for a different request.
        """
        with writing(self._engine) as connection:
            earlier = select(sweeps).where(sweeps.c.idempotency_key == key)
            if key and (row := connection.execute(earlier).mappings().first()):
                if row["request_sha256"] != sha256:
                    raise IdempotencyMismatch()
                return _sweep(row)
            request = {"idempotency_key": key, "request_sha256": sha256 if key else None}
            connection.execute(insert(sweeps).values(**_row(sweep), **request))
            audit_log.append(connection, action, now)
        return sweep

    def discard(self, sweep_id: str) -> None:
        """Remove a sweep of which no job was recorded."""
        with writing(self._engine) as connection:
            if not _count(connection, sweep_id):
                connection.execute(sweeps.delete().where(sweeps.c.id == sweep_id))

    def read(self, sweep_id: str) -> Sweep:
        """A sweep.

        Raises:
            NotFound: it does not exist.
        """
        with reading(self._engine) as connection:
            return _read(connection, sweep_id)

    def newest(self, projects: Collection[str] | None, limit: int) -> list[Sweep]:
        """The newest sweeps of these projects, or of all."""
        query = select(sweeps).order_by(sweeps.c.created_at.desc(), sweeps.c.id.desc()).limit(limit)
        if projects is not None:
            query = query.where(sweeps.c.project.in_(projects))
        with reading(self._engine) as connection:
            return [_sweep(row) for row in connection.execute(query).mappings()]

    def change(
        self, sweep_id: str, changes: dict[str, Any], action: AuditAction, now: datetime
    ) -> Sweep:
        """Change the budget or the number of parallel jobs; a new budget starts jobs again.

        Raises:
            NotFound: it does not exist.
        """
        with writing(self._engine) as connection:
            again = {"was_reached": False} if "max_cost_micros" in changes else {}
            mine = update(sweeps).where(sweeps.c.id == sweep_id)
            connection.execute(mine.values(**changes, **again))
            audit_log.append(connection, action, now)
            return _read(connection, sweep_id)

    def jobs_of(self, sweep_id: str) -> list[Job]:
        """The jobs of a sweep that are not removed, in the order of their combinations."""
        with reading(self._engine) as connection:
            return _jobs(connection, sweep_id)

    def job_ids(self, sweep_id: str) -> Sequence[str]:
        """The ids of the jobs of a sweep that are not removed."""
        mine = select(jobs.c.id).where(jobs.c.sweep == sweep_id).order_by(jobs.c.id)
        with reading(self._engine) as connection:
            return connection.execute(mine).scalars().all()

    def statuses(self, sweep_ids: Collection[str]) -> dict[str, dict[str, int]]:
        """The number of jobs in each state, by sweep."""
        counted = select(jobs.c.sweep, jobs.c.status, func.count()).group_by(jobs.c.sweep, jobs.c.status)  # fmt: skip
        found: dict[str, dict[str, int]] = {sweep_id: {} for sweep_id in sweep_ids}
        with reading(self._engine) as connection:
            for sweep_id, status, count in connection.execute(
                counted.where(jobs.c.sweep.in_(sweep_ids))
            ):
                found[sweep_id][status] = count
        return found

    def with_stop_rules(self) -> list[Sweep]:
        """Sweeps that stop jobs early and have jobs that have not ended."""
        live = select(jobs.c.sweep).where(jobs.c.sweep.is_not(None), jobs.c.status.not_in(list(Outcome)))  # fmt: skip
        query = select(sweeps).where(sweeps.c.stop_rule.is_not(None), sweeps.c.id.in_(live))
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings()
            # A JSON null is no SQL NULL.
            return [sweep for sweep in map(_sweep, rows) if sweep.stop_rule]

    def waits_for_turn(self, job: Job) -> bool:
        """Whether a queued job must not be launched yet.

        Others of its sweep run, or are queued before it.
        """
        with reading(self._engine) as connection:
            return _waits(connection, _read(connection, job.sweep), job)

    def next_ids(self, sweep_id: str) -> Sequence[str]:
        """Queued jobs of a sweep that may be launched now, in the order of their combinations."""
        with reading(self._engine) as connection:
            return _next_ids(connection, _read(connection, sweep_id))

    def balance(self, sweep_id: str, now: datetime) -> SweepBalance:
        """What is spent of the budget of a sweep."""
        with reading(self._engine) as connection:
            return _balance(connection, _read(connection, sweep_id), now)


def enforce_sweep(connection: Connection, job: Job, events: Sequence[Event], now: datetime) -> None:
    """Reject a launch for which a sweep has no turn or no money, in its transaction.

    Raises:
        StaleWrite: another job of the sweep was launched first.
        BudgetSpent: its budget has no room.
    """
    if not job.sweep:
        return
    if any(isinstance(event, GuardTripped) and event.guard is Guard.BUDGET for event in events):
        # Not for the expected price of a job without nodes: running ones may still use the rest.
        balance = _balance(connection, _read(connection, job.sweep), now)
        if balance.blocks_jobs(now, 0 if job.placed else job.micros_per_hour):
            mine = update(sweeps).where(sweeps.c.id == job.sweep)
            connection.execute(mine.values(was_reached=True))
    starts = [event for event in events if isinstance(event, LaunchRequested | ResumeRequested)]
    if not starts:
        return
    sweep = _read(connection, job.sweep)
    is_launch = any(isinstance(event, LaunchRequested) for event in starts)
    if is_launch and job.state is State.QUEUED and _waits(connection, sweep, job):
        raise StaleWrite(f"other jobs of sweep {sweep.id} are launched first; job {job.id} waits")
    if sweep.max_cost_micros is not None:
        balance = _balance(connection, sweep, now).of_job(job)
        if balance.blocks_jobs(now, job.micros_per_hour):
            raise BudgetSpent(f"job {job.id} cannot start: {balance.spent_message(now)}")


def jobs_without_turn(connection: Connection) -> set[str]:
    """Queued jobs that wait for other jobs of their sweep, in the order of their combinations."""
    limited = select(sweeps.c.id, sweeps.c.parallel).where(sweeps.c.parallel.is_not(None))
    waiting = select(jobs.c.id, jobs.c.sweep).where(
        jobs.c.sweep.is_not(None), jobs.c.status == State.QUEUED.value
    )
    turns = {row.id: row.parallel for row in connection.execute(limited)}
    if not turns:
        return set()
    active = select(jobs.c.sweep, func.count()).where(
        jobs.c.sweep.is_not(None), jobs.c.status.not_in(_IDLE)
    )
    for sweep_id, count in connection.execute(active.group_by(jobs.c.sweep)):
        if sweep_id in turns:
            turns[sweep_id] -= count
    found = set[str]()
    for row in connection.execute(waiting.order_by(*_IN_ORDER)):
        if row.sweep in turns:
            turns[row.sweep] -= 1
            if turns[row.sweep] < 0:
                found.add(row.id)
    return found


def keep_cost(connection: Connection, job: Job) -> None:
    """Keep the cost of a job that is removed in the balance of its sweep."""
    if job.sweep:
        after = sweeps.c.removed_micros + job.account.paid_micros
        mine = update(sweeps).where(sweeps.c.id == job.sweep)
        connection.execute(mine.values(removed_micros=after))


def _waits(connection: Connection, sweep: Sweep, job: Job) -> bool:
    return sweep.parallel is not None and job.id not in _next_ids(connection, sweep)


def _next_ids(connection: Connection, sweep: Sweep) -> Sequence[str]:
    mine = jobs.c.sweep == sweep.id
    queued = select(jobs.c.id).where(mine, jobs.c.status == State.QUEUED.value)
    if sweep.parallel is not None:
        active = select(func.count()).select_from(jobs).where(mine, jobs.c.status.not_in(_IDLE))
        room = sweep.parallel - connection.execute(active).scalar_one()
        if room <= 0:  # Sorting reads the fold of each job.
            return ()
        queued = queued.limit(room)
    return connection.execute(queued.order_by(*_IN_ORDER)).scalars().all()


def _balance(connection: Connection, sweep: Sweep, now: datetime) -> SweepBalance:
    mine = _jobs(connection, sweep.id)
    return SweepBalance(
        sweep=sweep,
        at=now,
        spent_micros=sweep.removed_micros + sum(job.account.paid_micros_by(now) for job in mine),
        micros_per_hour=sum(job.account.micros_per_hour for job in mine),
        usual_micros_per_hour=max((job.micros_per_hour for job in mine), default=0),
    )


def _jobs(connection: Connection, sweep_id: str) -> list[Job]:
    query = select(jobs.c.id, jobs.c.fold).where(jobs.c.sweep == sweep_id)
    rows = connection.execute(query).all()
    found = [event_log.load(connection, row.id, row.fold) for row in rows]
    return sorted(found, key=lambda job: (job.submitted_at, job.trial, job.id))


def _count(connection: Connection, sweep_id: str) -> int:
    mine = select(func.count()).select_from(jobs).where(jobs.c.sweep == sweep_id)
    return connection.execute(mine).scalar_one()


def _read(connection: Connection, sweep_id: str) -> Sweep:
    row = connection.execute(select(sweeps).where(sweeps.c.id == sweep_id)).mappings().first()
    if row is None:
        raise NotFound(f"there is no sweep {sweep_id}")
    return _sweep(row)


def _row(sweep: Sweep) -> dict[str, Any]:
    rule = sweep.stop_rule and {**asdict(sweep.stop_rule), "mode": sweep.stop_rule.mode.value}
    return {name: getattr(sweep, name) for name in Sweep.__dataclass_fields__} | {"stop_rule": rule}


def _sweep(row: Any) -> Sweep:
    rule = row["stop_rule"]
    known = {name: row[name] for name in Sweep.__dataclass_fields__}
    read = StopRule(**{**rule, "mode": StopMode(rule["mode"])}) if rule else None
    return Sweep(**known | {"stop_rule": read})
