"""Removal of ended jobs from the database.

One transaction removes a job from every list and records the removal. The rest of its rows, and its files, are removed afterwards
in small steps, each of which may be interrupted and repeated. The first event of the job, which names its store, is removed last.
Rows of `ledgers`, `launches` and `submissions` stay: sums of costs are unchanged, and no launch becomes unknown. What a job costs beside
its nodes ends with its removal, since nothing more becomes known of its store. So do those of `place_observations`,
`launch_starts` and `unhealthy_gpus`: the market and the machines outlive the job.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    Table,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)

from holdfast.domain.access.audit import AuditAction
from holdfast.domain.billing.running_cost import Month
from holdfast.domain.events import Finished, Outcome, Submitted
from holdfast.domain.jobfile.checkpoint_spec import Checkpoint
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.commands import removal_refusal
from holdfast.domain.jobs.job import Job
from holdfast.errors import NotPossibleNow, StaleWrite
from holdfast.ports import Clock
from holdfast.store import audit_log, event_log
from holdfast.store.billing.bills import BillRollups
from holdfast.store.database import reading, writing
from holdfast.store.journal import Journal
from holdfast.store.notifications.outbox import Outbox
from holdfast.store.sweeps import keep_cost
from holdfast.store.tables.jobs import (
    job_events,
    job_secrets,
    job_tags,
    jobs,
    metric_points,
    removed_jobs,
    report_marks,
    watches,
)
from holdfast.store.tables.launches import (
    launch_events,
    launches,
    musters,
    node_commands,
    node_terminals,
    rendezvous,
    store_request_days,
    upkeep,
)
from holdfast.store.tables.metrics import gpu_readings, metric_block_marks, metric_blocks

MAX_ROWS: Final = 2000
"""Rows that one transaction removes. A lower value adds transactions; a higher value lets other writers wait longer."""
_WITH_JOB: Final = (
    *(watches, upkeep, store_request_days, musters, rendezvous, node_commands, node_terminals),
    *(report_marks, job_secrets, job_tags, gpu_readings),
)
"""Removed with the job: other parts of the service find work in them."""
_LATER: Final = (metric_points, metric_blocks, metric_block_marks)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedJob:
    """A job that was removed."""

    job_id: str
    project: str
    owner: str
    launches: int
    """Number of its last launch; 0 without launches."""
    removed_at: datetime
    place: str | None
    """Its part of a checkpoint store; None without a store."""
    with_checkpoints: bool
    """Whether its checkpoints are removed as well."""
    trouble: str | None
    """Why the last attempt left files; None if it succeeded."""
    done_at: datetime | None
    """None while rows or files remain."""

    @property
    def message(self) -> str:
        """The message for callers who request the job."""
        return (
            f"job {self.job_id} was removed at {self.removed_at:%Y-%m-%d %H:%M}Z; "
            "its costs are still in: holdfast costs"
        )


class Removals:
    """Removed jobs, and jobs whose removal is due."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._journal = Journal(engine, clock)

    def find(self, job_id: str) -> RemovedJob | None:
        """The removal of a job; None if the job was not removed."""
        with reading(self._engine) as connection:
            return find(connection, job_id)

    def remove(
        self,
        job_id: str,
        action: Callable[[Job], AuditAction],
        rollups: BillRollups,
        *,
        with_checkpoints: bool = False,
    ) -> RemovedJob:
        """Remove an ended job from all lists, unless it was removed before.

        Its bill stays in rows, for sums.

        Raises:
            NotFound: the job does not exist.
            NotPossibleNow: it has not ended, some of it may still run, or a live job needs its
                checkpoints.
        """
        outbox = Outbox(self._engine, self._clock)
        while outbox.enqueue_new_events():
            pass  # Notifications refer to events, which are removed below.
        while (removal := self.find(job_id)) is None:
            job = self._journal.read(job_id)
            if why := removal_refusal(job):
                raise _refusal(job_id, why)
            rollups.roll_up_job(job_id)
            with suppress(StaleWrite):
                self._remove(job, action(job), rollups, with_checkpoints=with_checkpoints)
        return removal

    def list_unfinished(self) -> list[RemovedJob]:
        """Removals of which rows or files remain, the oldest first."""
        query = select(removed_jobs).where(removed_jobs.c.done_at.is_(None))
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(removed_jobs.c.removed_at)).mappings()
            return [_removal(row) for row in rows]

    def clear_measurements(self, job_id: str) -> None:
        """Remove metrics, and the recorded history of launches, in small steps."""
        of_launches = select(launches.c.key).where(launches.c.job_id == job_id)
        for table in _LATER:
            self._clear(table, table.c.job_id == job_id)
        self._clear(launch_events, launch_events.c.key.in_(of_launches))

    def clear_events(self, job_id: str) -> bool:
        """Remove the events of the job, the first one last; False while one must stay.

        The newest event of all jobs stays until there is a newer one, because the next event
        continues its number.
        """
        newest = select(func.max(job_events.c.cursor)).scalar_subquery()
        mine = job_events.c.job_id == job_id, job_events.c.cursor < newest
        self._clear(job_events, *mine, job_events.c.seq > 1)
        with reading(self._engine) as connection:
            count = select(func.count()).where(job_events.c.job_id == job_id)
            left: int = connection.execute(count).scalar_one()
        if left == 1:
            self._clear(job_events, *mine)
        with reading(self._engine) as connection:
            return not connection.execute(count).scalar_one()

    def record_result(self, job_id: str, trouble: str | None) -> None:
        """Record that the removal is complete, or with `trouble` why files remain."""
        done_at = None if trouble else self._clock.now()
        mine = update(removed_jobs).where(removed_jobs.c.id == job_id)
        with writing(self._engine) as connection:
            connection.execute(mine.values(trouble=trouble, done_at=done_at))

    def list_due(self, until: datetime) -> list[str]:
        """Jobs that ended before `until`, the oldest first."""
        end = func.min(job_events.c.recorded_at)
        query = (
            select(jobs.c.id)
            .join(job_events, job_events.c.job_id == jobs.c.id)
            .where(jobs.c.status.in_(list(Outcome)), job_events.c.kind == Finished.__name__)
            .group_by(jobs.c.id)
            .having(end < until)
            .order_by(end)
        )
        with reading(self._engine) as connection:
            return list(connection.execute(query).scalars())

    def _remove(
        self, job: Job, action: AuditAction, rollups: BillRollups, *, with_checkpoints: bool
    ) -> None:
        """Remove a job from all lists, in one transaction.

        Raises:
            StaleWrite: the job or its bill has changed since it was read; nothing was removed.
            NotPossibleNow: a live job needs its checkpoints; nothing was removed.
        """
        kept = checkpoint_of(self._journal.submission(job.id))
        month, now = Month.containing(job.account.free_since), self._clock.now()
        row = {
            "id": job.id,
            "project": job.project,
            "owner": job.owner,
            "launches": job.launch,
            "last_month": str(month),
            "last_month_micros": job.account.paid_micros_in(month, month.end),
            "removed_at": now,
            "place": f"{kept.store.rstrip('/')}/{job.id}" if kept else None,
            "with_checkpoints": with_checkpoints,
        }
        with writing(self._engine) as connection:
            seq = connection.execute(select(jobs.c.seq).where(jobs.c.id == job.id)).scalar()
            if seq != job.seq or not rollups.is_rolled_up(connection, job):
                raise StaleWrite(f"job {job.id} has changed; read it again")
            # A job that is submitted later finds the removal: both are exclusive write
            # transactions.
            if with_checkpoints and (dependent := _dependent_job(connection, job.id)):
                why = f"job {dependent} resumes from its checkpoints; wait until that has saved one, or keep the checkpoints"
                raise _refusal(job.id, why)
            connection.execute(insert(removed_jobs).values(**row))
            rollups.end_charges(connection, job.id, now)
            keep_cost(connection, job)
            connection.execute(delete(jobs).where(jobs.c.id == job.id))
            for table in _WITH_JOB:
                connection.execute(delete(table).where(table.c.job_id == job.id))
            audit_log.append(connection, action, now)

    def _clear(self, table: Table, *which: ColumnElement[bool]) -> None:
        key = table.primary_key.columns
        some = select(*key).where(*which).limit(MAX_ROWS)
        removed = MAX_ROWS
        while removed == MAX_ROWS:
            with writing(self._engine) as connection:
                removed = connection.execute(delete(table).where(tuple_(*key).in_(some))).rowcount


def find(connection: Connection, job_id: str) -> RemovedJob | None:
    """The removal of a job; None if the job was not removed."""
    row = connection.execute(select(removed_jobs).where(removed_jobs.c.id == job_id)).mappings()
    found = row.first()
    return _removal(found) if found else None


def _dependent_job(connection: Connection, job_id: str) -> str | None:
    """A live job that resumes from a job's checkpoints and has none of its own, or None."""
    source = job_events.c.body["spec", "holdfast", "checkpoint", "from"].as_string()
    live = (
        select(jobs.c.id, jobs.c.fold)
        .join(job_events, (job_events.c.job_id == jobs.c.id) & (job_events.c.seq == 1))
        .where(jobs.c.status.not_in(list(Outcome)), source == job_id)
        .order_by(jobs.c.id)
    )
    for row in connection.execute(live).all():
        if event_log.load(connection, row.id, row.fold).last_checkpoint_step is None:
            dependent: str = row.id
            return dependent
    return None


def _refusal(job_id: str, why: str) -> NotPossibleNow:
    return NotPossibleNow(f"job {job_id} cannot be removed: {why}")


def checkpoint_of(submitted: Submitted) -> Checkpoint | None:
    """The checkpoint store of a job; None without one."""
    return JobSpec.from_stored(submitted.spec).holdfast.checkpoint


def _removal(row: RowMapping) -> RemovedJob:
    names = {field.name for field in fields(RemovedJob)} - {"job_id"}
    return RemovedJob(job_id=row["id"], **{name: row[name] for name in names})
