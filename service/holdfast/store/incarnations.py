"""Registration of workers whose launcher restarts attempts by itself.

Every attempt has the same environment, so that a worker does not know its attempt. It generates a
random name, its incarnation, and registers. The newest registered worker reports for the job; all
earlier ones are fenced. Only an observation that began after the registration determines the
attempt: it certainly includes the loss of the previous placement, and may include the worker's own.

A worker that does not reach the service cannot register. The reports that it relays through its
checkpoint store have a time, so that its attempt is the one whose nodes existed then. They fence no
other worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Engine, func, insert, or_, select, update

from holdfast.domain.events import NodesReady
from holdfast.domain.jobs.job import LEAVING, State
from holdfast.errors import Fenced, NotObservedYet, NotRegistered
from holdfast.ports import Clock
from holdfast.store import event_log
from holdfast.store.database import writing
from holdfast.store.tables.jobs import job_events, report_marks, watches
from holdfast.store.tables.launches import musters

_SUPERSEDED: Final = "a newer worker has registered for this job; stop without saving"


@dataclass(frozen=True, slots=True)
class JobPosition:
    """The position of a worker's reports in its job."""

    attempt: int
    next: int
    """Number of the next expected report."""
    before: int
    """Number of reports of the attempt from earlier workers."""


class Incarnations:
    """The registered workers."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def register(self, job_id: str, incarnation: str) -> JobPosition:
        """Register a worker and return its position; its first call makes it the newest.

        Raises:
            NotFound: the job does not exist.
            Fenced: another worker registered later, the job has ended, or it is stopping and the
                worker is new.
            NotObservedYet: the launcher was not observed since the first call, which is recorded.
        """
        with writing(self._engine) as connection:
            row = self._current_row(connection, job_id, incarnation)
            position = _position(connection, row)
        if position is None:
            raise NotObservedYet()
        return position

    def register_posted(
        self, job_id: str, incarnation: str, at: datetime, known: tuple[int, int] | None
    ) -> tuple[int, int] | None:
        """The attempt of a worker that relayed reports, and how many of its reports precede them.

        None: the launcher was not observed since `at`, when the first of them was written by the
        clock of this service. `known` is the position that the service assigned to the worker
        before; None without one.

        Raises:
            NotFound: the job does not exist.
        """
        with writing(self._engine) as connection:
            row = _row(connection, job_id, incarnation) or _insert_posted(
                connection, job_id, incarnation, at
            )
            attempt = row["attempt"] or (known[0] if known else _attempt_at(connection, job_id, at))
            if attempt is None:
                return None
            mark = _mark(connection, job_id, attempt)
            before = row["before"] if row["attempt"] else None
            if known and known[0] == attempt:
                before = known[1]
            elif before is None:
                before = mark
            if row["attempt"] is None:
                _assign_attempt(connection, row, attempt, before)
            # Reports of other workers that a restored database has lost will not be sent again:
            # these follow the existing ones.
            return attempt, min(before, mark)

    def _current_row(self, connection: Connection, job_id: str, incarnation: str) -> Any:
        """The row of the newest incarnation, created if it is new."""
        state = event_log.read(connection, job_id).state
        if state is State.ENDED:
            raise Fenced(f"job {job_id} has ended; stop")
        if state is State.PAUSED:
            raise Fenced(f"job {job_id} is paused; stop")
        row = _row(connection, job_id, incarnation)
        if row is None and state in LEAVING:
            raise Fenced(f"job {job_id} is {state}, so no worker may start; stop")
        newest = _newest(connection, job_id)
        if row is None:
            row = _insert(connection, job_id, incarnation, self._clock.now(), max(newest, 0) + 1)
            due = update(watches).where(watches.c.job_id == job_id)
            connection.execute(due.values(due_at=row["asked_at"]))
        elif row["n"] < 1 and not _is_followed(connection, row):
            row = {**row, "n": max(newest, 0) + 1}
            connection.execute(_update_row(row).values(n=row["n"]))
        elif row["n"] != newest:
            raise Fenced(_SUPERSEDED)
        return row


def check_current(mine: int | None, newest: int | None, attempt: int, assigned: int | None) -> None:
    """Accept reports of `attempt` from the newest worker only.

    `mine` is the registration number of the sender, None without registration; `newest` that of the
    last worker; `assigned` the attempt assigned to the sender, None before that.

    Raises:
        Fenced: another worker has registered since.
        NotRegistered: according to the database, the sender is not registered, or for a different
            attempt.
    """
    # A restored database lacks later registrations, which does not fence their workers.
    if mine is None or mine < 1:
        raise NotRegistered()
    if mine != newest:
        raise Fenced(_SUPERSEDED)
    _check_attempt(assigned, attempt)


def check_posted(
    connection: Connection, job_id: str, incarnation: str, attempt: int, posted_at: datetime
) -> None:
    """Accept reports that an incarnation wrote to its store while it was the newest worker.

    They count regardless of when they arrive.

    Raises:
        Fenced: another worker was registered by then, on the same nodes or later ones.
        NotRegistered: it is not known to belong to this attempt.
    """
    mine = _row(connection, job_id, incarnation)
    if mine is None:
        raise NotRegistered()
    _check_attempt(mine["attempt"], attempt)
    # A worker that first relays reports from nodes lost before ours were provisioned replaces no
    # other.
    later = or_(musters.c.attempt.is_(None), musters.c.attempt >= attempt)
    others = select(musters.c.n).where(
        musters.c.job_id == job_id,
        musters.c.asked_at > mine["asked_at"],
        musters.c.asked_at <= posted_at,
        later,
    )
    if connection.execute(others.limit(1)).first():
        raise Fenced(_SUPERSEDED)


def _check_attempt(assigned: int | None, attempt: int) -> None:
    if assigned != attempt:
        raise NotRegistered(
            f"this worker is not registered for attempt {attempt}; it has to register"
        )


def _row(connection: Connection, job_id: str, incarnation: str) -> Any:
    mine = musters.c.job_id == job_id, musters.c.incarnation == incarnation
    return connection.execute(select(musters).where(*mine)).mappings().first()


def _newest(connection: Connection, job_id: str) -> int:
    """The highest registration number of a job; 0 without any."""
    highest = select(func.max(musters.c.n)).where(musters.c.job_id == job_id)
    return connection.execute(highest).scalar() or 0


def _insert_posted(connection: Connection, job_id: str, incarnation: str, at: datetime) -> Any:
    """Insert the row of an incarnation that has relayed reports without registration."""
    event_log.read(connection, job_id)  # Raises NotFound for an unknown job.
    lowest = select(func.coalesce(func.min(musters.c.n), 1)).where(musters.c.job_id == job_id)
    n = min(connection.execute(lowest).scalar_one(), 1) - 1
    return _insert(connection, job_id, incarnation, at, n)


def _insert(connection: Connection, job_id: str, incarnation: str, at: datetime, n: int) -> Any:
    row = {"job_id": job_id, "n": n, "incarnation": incarnation, "asked_at": at}
    row |= {"attempt": None, "before": None}
    connection.execute(insert(musters).values(**row))
    return row


def _update_row(row: Any) -> Any:
    return update(musters).where(
        musters.c.job_id == row["job_id"], musters.c.incarnation == row["incarnation"]
    )


def _assign_attempt(connection: Connection, row: Any, attempt: int, before: int) -> None:
    connection.execute(_update_row(row).values(attempt=attempt, before=before))


def _is_followed(connection: Connection, row: Any) -> bool:
    """Whether another worker registered after the first relayed report of an unregistered one."""
    others = select(musters.c.n).where(
        musters.c.job_id == row["job_id"],
        musters.c.n > 0,
        musters.c.asked_at > row["asked_at"],
    )
    return connection.execute(others.limit(1)).first() is not None


def _position(connection: Connection, row: Any) -> JobPosition | None:
    """The position of an incarnation; None until the launcher was observed."""
    job_id: str = row["job_id"]
    attempt: int | None = row["attempt"]
    if attempt is None:
        if not _was_observed_since(connection, job_id, row["asked_at"]):
            return None
        job = event_log.read(connection, job_id)
        # If its nodes are not recorded yet, it belongs to the next attempt. Two workers that run on
        # the same nodes, one after the other, share the attempt: the newer one continues where the
        # older one stopped.
        attempt = job.attempt if job.placed else job.attempt + 1
        before = _mark(connection, job_id, attempt)
        _assign_attempt(connection, row, attempt, before)
        return JobPosition(attempt, before + 1, before)
    mark = _mark(connection, job_id, attempt)
    # Reports of other workers that a restored database has lost will not be sent again.
    before = mark if row["before"] is None else min(row["before"], mark)
    return JobPosition(attempt, mark + 1, before)


def _was_observed_since(connection: Connection, job_id: str, since: datetime) -> bool:
    seen = select(watches.c.seen_at).where(watches.c.job_id == job_id)
    seen_at: datetime | None = connection.execute(seen).scalar()
    return seen_at is not None and seen_at > since


def _attempt_at(connection: Connection, job_id: str, at: datetime) -> int | None:
    """The attempt whose nodes existed at a moment; None while unknown.

    A launcher loses one placement before it starts the next, and reports exist only after the
    nodes. So it is the newest attempt whose nodes existed by then; the first one if clocks differ
    too much.
    """
    is_over = event_log.read(connection, job_id).state is State.ENDED
    if not is_over and not _was_observed_since(connection, job_id, at):
        return None
    ready = select(job_events.c.at, job_events.c.body).where(
        job_events.c.job_id == job_id, job_events.c.kind == NodesReady.__name__
    )
    first: int | None = None
    newest: int | None = None
    for row in connection.execute(ready.order_by(job_events.c.seq)):
        number: int = row.body["attempt"]
        first = first or number
        newest = number if row.at <= at else newest
    return newest or first


def _mark(connection: Connection, job_id: str, attempt: int) -> int:
    """The highest recorded report of an attempt."""
    mark = select(report_marks.c.n).where(
        report_marks.c.job_id == job_id, report_marks.c.attempt == attempt
    )
    return connection.execute(mark).scalar() or 0
