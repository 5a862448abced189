"""The event log: numbered events in commit order, and the cached fold of each job.

Only the journal and the ingestion of reports write through this module. The cached row of a job
contains its fold as JSON, and the version of the fold that made it. A row of a different version is
not used: the job is folded again from its log. So a release may change what follows from events,
and `row == fold(log)` holds before the first event after the upgrade.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import Connection, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from holdfast.domain.billing.running_cost import CostLine, Month
from holdfast.domain.events import (
    Event,
    Resized,
    Submitted,
    current_submission,
    decode,
    encode,
)
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import FOLD, advance, fold
from holdfast.errors import NotFound, StaleWrite
from holdfast.store import job_index
from holdfast.store.market import projection
from holdfast.store.tables.jobs import job_events, jobs, watches

_JOB: Final = TypeAdapter(Job)
_VERSION: Final = "fold"
_INCOMPLETE: Final = 0
"""The version of a row whose fold skipped events of a newer version; it matches no version."""


def dump(job: Job) -> dict[str, Any]:
    """The cached row of a job, as JSON values."""
    row: dict[str, Any] = _JOB.dump_python(job, mode="json")
    return {_VERSION: _INCOMPLETE if job.passed_over else FOLD, **row}


def job_row(job: Job) -> dict[str, Any]:
    """Columns of a job's row that repeat values of its events."""
    account = job.account
    has_none = job.outcome or (account.open_meter is None and not job.passed_over)
    month = Month.containing(account.free_since) if has_none else None
    paid = account.paid_micros_in(month, month.end) if month else None
    line = None if job.outcome or job.passed_over else account.cost_line
    return {
        "seq": job.seq,
        "status": job.status,
        "fold": dump(job),
        "paid_seq": job.seq,
        "last_month": month and str(month),
        "last_month_micros": paid,
        **{f"meter_{name}": line and getattr(line, name) for name in CostLine._fields},
    }


def load(connection: Connection, job_id: str, row: Mapping[str, Any]) -> Job:
    """The job of a cached row; folded from its log if a different version made the row."""
    if is_stale(row):
        return refold(connection, job_id)
    return _JOB.validate_python(row, extra="ignore")


def is_stale(row: Mapping[str, Any]) -> bool:
    """Whether a different version made a cached row."""
    return row.get(_VERSION) != FOLD


def read(connection: Connection, job_id: str) -> Job:
    """The current state of a job.

    Raises:
        NotFound: the job does not exist.
    """
    row = connection.execute(select(jobs.c.fold).where(jobs.c.id == job_id)).scalar()
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    return load(connection, job_id, row)


def refold(connection: Connection, job_id: str) -> Job:
    """The job folded from its log alone."""
    log = select(job_events).where(job_events.c.job_id == job_id).order_by(job_events.c.seq)
    rows = connection.execute(log).mappings()
    return fold(job_id, [decode(row["kind"], row["at"], row["body"]) for row in rows])


def submissions(connection: Connection, job_ids: Collection[str]) -> dict[str, Submitted]:
    """The submissions of jobs with their newest resources; unknown jobs are omitted."""
    table = job_events.c
    holds_file = or_(table.seq == 1, table.kind == Resized.__name__)
    query = select(job_events).where(table.job_id.in_(job_ids), holds_file)
    rows = connection.execute(query.order_by(table.job_id, table.seq)).mappings()
    return {
        job_id: current_submission(decode(row["kind"], row["at"], row["body"]) for row in mine)
        for job_id, mine in groupby(rows, key=lambda row: str(row["job_id"]))
    }


def record(connection: Connection, job: Job, events: Sequence[Event], now: datetime) -> Job:
    """Append `events` to a job and return it, with its cached row.

    Raises:
        StaleWrite: another writer has changed or removed the job since.
        IllegalTransition: an event cannot follow.
    """
    if not events:
        return job
    after = job
    for event in events:
        after = advance(after, event)
    write(connection, job.id, events, first_seq=job.seq + 1, now=now)
    statement = update(jobs).where(jobs.c.id == job.id).values(**job_row(after))
    if not connection.execute(statement).rowcount:
        raise StaleWrite(f"job {job.id} was removed; nothing was written")
    if (after.tags, after.engine) != (job.tags, job.engine):
        job_index.index_again(connection, after)
        mine = update(watches).where(watches.c.job_id == job.id)
        connection.execute(mine.values(engine=after.engine.value))
    projection.project(connection, job.id, events)
    return after


def write(
    connection: Connection, job_id: str, events: Sequence[Event], *, first_seq: int, now: datetime
) -> None:
    """Append `events` of one job, the first as number `first_seq`.

    Raises:
        StaleWrite: another writer has changed the job since.
    """
    cursor: int = connection.execute(
        select(func.coalesce(func.max(job_events.c.cursor), 0))
    ).scalar_one()
    rows = [
        {
            "job_id": job_id,
            "seq": first_seq + index,
            "cursor": cursor + 1 + index,
            "at": event.at,
            "recorded_at": now,
            "source": event.source.value,
            "kind": type(event).__name__,
            "body": encode(event),
        }
        for index, event in enumerate(events)
    ]
    try:
        connection.execute(insert(job_events), rows)
    except IntegrityError as error:
        raise StaleWrite(f"job {job_id} was changed at the same time; read it again") from error
