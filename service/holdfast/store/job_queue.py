"""Quotas, the queue of waiting jobs, and the shares that admitted jobs hold.

While quotas are set, each job that is neither paused nor ended has a row: it waits, or holds a share. The rows are written in the
transaction of the events that change them, and the quotas are checked in the transaction that records an admission. Writers are
serialized, so that two services cannot admit two jobs into the same room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, delete, func, insert, select, update

from holdfast.domain.access.audit import AuditAction
from holdfast.domain.events import (
    Admitted,
    Event,
    Finished,
    LaunchRequested,
    Outcome,
    Paused,
    PausedForPriority,
    PriorityChanged,
    Requeued,
    ResumeRequested,
    Submitted,
)
from holdfast.domain.events.values import Demand
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.pauses import may_be_paused
from holdfast.domain.queue.admission import evaluate
from holdfast.domain.queue.priority_pauses import (
    PauseCandidate,
    PriorityPause,
    choose_pauses,
    may_pause,
    pausable,
)
from holdfast.domain.queue.queue_state import (
    DecayedUsage,
    QueueEntry,
    QueueState,
    held_gpu_hours,
)
from holdfast.domain.queue.quotas import HeldShares, Quota, QuotaScope, demand_of
from holdfast.errors import NotFound, StaleWrite
from holdfast.ports import Clock
from holdfast.store import audit_log, event_log
from holdfast.store.database import reading, writing
from holdfast.store.sweeps import jobs_without_turn
from holdfast.store.tables.billing import owner_usage, queue_entries, quotas
from holdfast.store.tables.jobs import jobs

_LIMITS: Final = ("jobs", "nodes", "gpus", "micros_per_hour")
_DEMAND: Final = ("nodes", "gpus", "micros_per_hour")
_TRACKED: Final = (
    Submitted,
    ResumeRequested,
    Requeued,
    Admitted,
    PausedForPriority,
    Paused,
    Finished,
    PriorityChanged,
)
_LEAVING: Final = (State.PAUSING.value, State.STOPPING.value)


class JobQueue:
    """The queue of the service, with its quotas."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def quotas(self) -> tuple[Quota, ...]:
        """All quotas: that of the service first, then by scope and name."""
        with reading(self._engine) as connection:
            return _quotas(connection)

    def set_quota(self, quota: Quota, action: AuditAction) -> None:
        """Set or replace a quota.

        Jobs that run keep their shares, also above it. With the first quota, the shares of running jobs are recorded.
        """
        key = quotas.c.scope == quota.scope.value, quotas.c.name == quota.name
        values: dict[str, Any] = {name: getattr(quota, name) for name in _LIMITS}
        values["may_pause_for_priority"] = quota.may_pause_for_priority
        with writing(self._engine) as connection:
            if not connection.execute(update(quotas).where(*key).values(**values)).rowcount:
                row = {"scope": quota.scope.value, "name": quota.name, **values}
                connection.execute(insert(quotas).values(**row))
            _enroll_missing(connection, self._clock.now())
            audit_log.append(connection, action, self._clock.now())

    def remove(self, scope: QuotaScope, name: str, action: AuditAction) -> None:
        """Remove a quota. Without any, no job waits in the queue.

        Raises:
            NotFound: the quota does not exist.
        """
        with writing(self._engine) as connection:
            mine = quotas.c.scope == scope.value, quotas.c.name == name
            if not connection.execute(delete(quotas).where(*mine)).rowcount:
                whose = "the service" if scope is QuotaScope.SERVICE else f"{scope} {name}"
                raise NotFound(f"there is no quota of {whose}")
            if not has_quotas(connection):
                connection.execute(delete(queue_entries))
            audit_log.append(connection, action, self._clock.now())

    def state(self) -> QueueState:
        """All that the order of the queue follows from; empty without quotas."""
        with reading(self._engine) as connection:
            return _state(connection, self._clock.now())

    def pauses(self) -> tuple[PriorityPause, ...]:
        """The jobs that are to be paused now for waiting ones of a higher priority."""
        with reading(self._engine) as connection:
            return _pauses(connection, self._clock.now())

    def enroll(self) -> None:
        """Add rows of jobs that an older version has submitted or resumed while quotas are set."""
        with writing(self._engine) as connection:
            if has_quotas(connection):
                _enroll_missing(connection, self._clock.now())


def enforce_quotas(
    connection: Connection, job: Job, events: Sequence[Event], now: datetime
) -> None:
    """Reject admissions without room, launches without one, and needless pauses for others.

    Raises:
        StaleWrite: another job was admitted in the meantime, or the quotas have changed.
    """
    if any(isinstance(event, PausedForPriority) for event in events) and not any(
        pause.job_id == job.id for pause in _pauses(connection, now)
    ):
        raise StaleWrite(f"job {job.id} need not be paused for another one any more")
    admitted = next((event for event in events if isinstance(event, Admitted)), None)
    if admitted is None and not any(isinstance(event, LaunchRequested) for event in events):
        return
    found = _quotas(connection)
    mine = queue_entries.c.job_id == job.id
    row = connection.execute(select(queue_entries).where(mine)).first()
    if row is None or (row.admitted_at is None) != bool(admitted):
        raise StaleWrite(f"job {job.id} cannot start: the quotas were changed at the same time")
    if admitted is None:
        return
    for quota in found:
        if quota.applies_to(row.project, row.owner):
            for kind in quota.lacking(_held(connection, quota), admitted.demand):
                raise StaleWrite(
                    f"job {job.id} cannot start: {quota.description} has no room for more {kind}"
                )


def track_queue(connection: Connection, job: Job, events: Sequence[Event], now: datetime) -> None:
    """Update the row of a job after `events`; `job` contains them."""
    changes = [event for event in events if isinstance(event, _TRACKED)]
    mine = queue_entries.c.job_id == job.id
    for event in changes:
        match event:
            case Submitted() | ResumeRequested() | Requeued():
                submitted = (
                    event
                    if isinstance(event, Submitted)
                    else event_log.submissions(connection, [job.id])[job.id]
                )
                row = _row(job, submitted, admitted_at=None)
                connection.execute(insert(queue_entries).values(**row))
            case Admitted(at=at, demand=demand):
                held = {name: getattr(demand, name) for name in _DEMAND}
                connection.execute(update(queue_entries).where(mine).values(admitted_at=at, **held))
            case PausedForPriority(for_job=for_job):
                connection.execute(update(queue_entries).where(mine).values(paused_for=for_job))
            case PriorityChanged(priority=priority):
                connection.execute(update(queue_entries).where(mine).values(priority=priority))
            case Paused() | Finished():
                _release(connection, job.id, now)


def _release(connection: Connection, job_id: str, now: datetime) -> None:
    """Remove the row of a job, and count what it has held for its owner."""
    mine = queue_entries.c.job_id == job_id
    row = connection.execute(select(queue_entries).where(mine)).first()
    if row is None:
        return
    connection.execute(delete(queue_entries).where(mine))
    if row.admitted_at is None:
        return
    owner = owner_usage.c.owner == row.owner
    known = connection.execute(select(owner_usage).where(owner)).first()
    before = DecayedUsage(gpu_hours=known.gpu_hours, at=known.at).decayed(now) if known else 0.0
    entry = _entry(row)
    hours = before + held_gpu_hours(entry.demand, row.admitted_at, now)
    if known:
        connection.execute(update(owner_usage).where(owner).values(gpu_hours=hours, at=now))
    else:
        values = {"owner": row.owner, "gpu_hours": hours, "at": now}
        connection.execute(insert(owner_usage).values(**values))


def _enroll_missing(connection: Connection, now: datetime) -> None:
    """Add rows of live jobs without one. Those with a launch hold a share from now on."""
    idle = [*(outcome.value for outcome in Outcome), State.PAUSED.value]
    known = select(queue_entries.c.job_id)
    live = select(jobs.c.id).where(jobs.c.status.not_in(idle), jobs.c.id.not_in(known))
    for job_id in list(connection.execute(live).scalars()):
        job = event_log.read(connection, job_id)
        admitted_at = None if job.state is State.QUEUED else now
        submitted = event_log.submissions(connection, [job_id])[job_id]
        row = _row(job, submitted, admitted_at=admitted_at)
        connection.execute(insert(queue_entries).values(**row))


def _row(job: Job, submitted: Submitted, *, admitted_at: datetime | None) -> dict[str, Any]:
    demand = submitted.demand or demand_of(JobSpec.from_stored(submitted.spec), job.micros_per_hour)
    return {
        "job_id": job.id,
        "project": job.project,
        "owner": job.owner,
        "priority": job.priority,
        "queued_at": job.queued_at or job.submitted_at,
        "admitted_at": admitted_at,
        **{name: getattr(demand, name) for name in _DEMAND},
    }


def _state(connection: Connection, now: datetime) -> QueueState:
    """The queue as recorded; empty without quotas."""
    found = _quotas(connection)
    if not found:
        return QueueState(at=now)
    status = select(jobs.c.status).where(jobs.c.id == queue_entries.c.job_id).scalar_subquery()
    rows = connection.execute(select(queue_entries, status.label("status")))
    entries = [_entry(row) for row in rows]
    without_turn = jobs_without_turn(connection)
    used = {
        row.owner: DecayedUsage(gpu_hours=row.gpu_hours, at=row.at).decayed(now)
        for row in connection.execute(select(owner_usage))
    }
    waiting = (each for each in entries if each.admitted_at is None)
    return QueueState(
        at=now,
        quotas=found,
        waiting=tuple(each for each in waiting if each.job_id not in without_turn),
        holding=tuple(each for each in entries if each.admitted_at is not None),
        used=used,
    )


def _pauses(connection: Connection, now: datetime) -> tuple[PriorityPause, ...]:
    """The pauses for priorities, with the jobs as recorded."""
    state = _state(connection, now)
    if not may_pause(state):
        return ()
    positions = evaluate(state)
    entries = {each.job_id: each for each in pausable(state, positions)}
    asked = event_log.submissions(connection, list(entries))
    candidates = dict[str, PauseCandidate]()
    for job_id, entry in entries.items():
        job = event_log.read(connection, job_id)
        if may_be_paused(job, JobSpec.from_stored(asked[job_id].spec)):
            candidates[job_id] = PauseCandidate(entry=entry, pauses=job.priority_pauses)
    return choose_pauses(state, positions, candidates)


def has_quotas(connection: Connection) -> bool:
    """Whether there are quotas, so that jobs need an admission."""
    return connection.execute(select(quotas.c.scope).limit(1)).first() is not None


def _quotas(connection: Connection) -> tuple[Quota, ...]:
    rows = connection.execute(select(quotas).order_by(quotas.c.scope, quotas.c.name))
    found = [
        Quota(
            scope=QuotaScope(row.scope),
            name=row.name,
            may_pause_for_priority=bool(row.may_pause_for_priority),
            **{name: getattr(row, name) for name in _LIMITS},
        )
        for row in rows
    ]
    return tuple(sorted(found, key=lambda quota: [*QuotaScope].index(quota.scope)))


def _held(connection: Connection, quota: Quota) -> HeldShares:
    """What admitted jobs hold of a quota."""
    sums = [func.coalesce(func.sum(queue_entries.c[name]), 0) for name in _DEMAND]
    query = select(func.count(), *sums).where(queue_entries.c.admitted_at.is_not(None))
    row = connection.execute(query.where(*_counted_by(quota))).one()
    return HeldShares(jobs=row[0], nodes=int(row[1]), gpus=int(row[2]), micros_per_hour=int(row[3]))


def _counted_by(quota: Quota) -> Iterator[Any]:
    match quota.scope:
        case QuotaScope.PROJECT:
            yield queue_entries.c.project == quota.name
        case QuotaScope.USER:
            yield queue_entries.c.owner == quota.name
        case QuotaScope.SERVICE:
            return


def _entry(row: Row[Any]) -> QueueEntry:
    """An entry of a row, which may have the status of its job."""
    return QueueEntry(
        job_id=row.job_id,
        project=row.project,
        owner=row.owner,
        priority=row.priority,
        queued_at=row.queued_at,
        demand=Demand(nodes=row.nodes, gpus=row.gpus, micros_per_hour=row.micros_per_hour),
        admitted_at=row.admitted_at,
        is_leaving=getattr(row, "status", None) in _LEAVING,
        paused_for=row.paused_for or "",
    )
