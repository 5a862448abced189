"""The cached row of a job: its fold as JSON, and the version of the fold that made it.

A row that another version made is never believed: the job is folded anew from its log. So a release may change what
follows from the facts, and `row == fold(log)` holds before the first fact after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import Connection, select

from holdfast.domain.account import Line
from holdfast.domain.events import decode
from holdfast.domain.job import Job
from holdfast.domain.lifecycle import FOLD, fold
from holdfast.domain.months import Month
from holdfast.errors import NotFound
from holdfast.store.schema import job_events, jobs

_JOB: Final = TypeAdapter(Job)
_VERSION: Final = "fold"
_INCOMPLETE: Final = 0
"""The version of a row whose fold passed over events of a newer version: no version believes it."""


def dump(job: Job) -> dict[str, Any]:
    """The cached row of a job, as JSON values."""
    row: dict[str, Any] = _JOB.dump_python(job, mode="json")
    return {_VERSION: _INCOMPLETE if job.passed_over else FOLD, **row}


def row(job: Job) -> dict[str, Any]:
    """What the row of a job repeats of its facts, by column."""
    account = job.account
    has_none = job.outcome or (account.standing is None and not job.passed_over)
    month = Month.of(account.free_since) if has_none else None
    paid = account.paid_micros_in(month, month.end) if month else None
    line = None if job.outcome or job.passed_over else account.line
    return {
        "seq": job.seq,
        "status": job.status,
        "fold": dump(job),
        "paid_seq": job.seq,
        "last_month": month and str(month),
        "last_month_micros": paid,
        **{f"meter_{name}": line and getattr(line, name) for name in Line._fields},
    }


def load(connection: Connection, job_id: str, row: Mapping[str, Any]) -> Job:
    """The job of a cached row; folded from its log where another version has made the row."""
    if is_stale(row):
        return refold(connection, job_id)
    return _JOB.validate_python(row, extra="ignore")


def is_stale(row: Mapping[str, Any]) -> bool:
    """Whether a cached row is of another version than this one."""
    return row.get(_VERSION) != FOLD


def read(connection: Connection, job_id: str) -> Job:
    """The job as its newest fact left it.

    Raises:
        NotFound: there is no such job.
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
