"""How facts get into the log: numbered, in the order of commit, with the cached row of their job in the same transaction.

The journal writes through here, and so does whatever takes the reports of workers; nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from holdfast.domain.events import Event, encode
from holdfast.domain.job import Job
from holdfast.domain.lifecycle import advance
from holdfast.errors import StaleWrite
from holdfast.store import folds
from holdfast.store.schema import job_events, jobs


def record(connection: Connection, job: Job, events: Sequence[Event], now: datetime) -> Job:
    """The job after `events`, with its cached row.

    Raises:
        StaleWrite: someone else wrote to this job since, or removed it.
        IllegalTransition: an event cannot follow.
    """
    if not events:
        return job
    after = job
    for event in events:
        after = advance(after, event)
    write(connection, job.id, events, first_seq=job.seq + 1, now=now)
    mine = update(jobs).where(jobs.c.id == job.id).values(**folds.row(after))
    if not connection.execute(mine).rowcount:
        raise StaleWrite(f"job {job.id} was removed; nothing was written")
    return after


def write(
    connection: Connection, job_id: str, events: Sequence[Event], *, first_seq: int, now: datetime
) -> None:
    """Append `events` of one job, the first as number `first_seq`.

    Raises:
        StaleWrite: someone else wrote to this job since.
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
        raise StaleWrite(f"someone else wrote to {job_id} first; read it again") from error
