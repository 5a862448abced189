"""Which worker speaks for a job, where the launcher recovers by itself and gives each placement the same environment.

Such a worker does not know its attempt. It draws a name for itself, its incarnation, and asks. The newest to have
asked speaks for the job; all before it are fenced. Which attempt it is, only a look can tell that began after the
worker was there: the loss of the placement before it is then seen for sure, its own placement perhaps.

A worker that does not reach us cannot ask. What it posts in its checkpoint store has a time, so that its attempt is the one
whose nodes were there by then. That fences nobody: who never asked speaks for itself alone.
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
    """Where a worker stands in its job."""

    attempt: int
    next: int
    """Number of the report that is wanted next."""
    before: int
    """Reports of the attempt that others sent before its first."""


class Incarnations:
    """The workers that have asked."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def register(self, job_id: str, incarnation: str) -> JobPosition:
        """The place of the newest worker of a job; the first call of an incarnation makes it the newest.

        Raises:
            NotFound: there is no such job.
            Fenced: another worker asked after this one, or the job has ended, or is about to and this one is new.
            NotObservedYet: nobody has looked at the launcher since it asked first; its call is kept.
        """
        with writing(self._engine) as connection:
            row = self._current_row(connection, job_id, incarnation)
            place = _position(connection, row)
        if place is None:
            raise NotObservedYet()
        return place

    def register_posted(
        self, job_id: str, incarnation: str, at: datetime, said: tuple[int, int] | None
    ) -> tuple[int, int] | None:
        """The attempt of an incarnation that left reports in its store, and how many of it others sent before its first.

        None: nobody has looked at the launcher since `at`, when the first of them was there by our clock. `said` is the
        same as the incarnation has it from us; None while it has nothing.

        Raises:
            NotFound: there is no such job.
        """
        with writing(self._engine) as connection:
            row = _row(connection, job_id, incarnation) or _insert_posted(
                connection, job_id, incarnation, at
            )
            attempt = row["attempt"] or (said[0] if said else _attempt_at(connection, job_id, at))
            if attempt is None:
                return None
            mark = _mark(connection, job_id, attempt)
            before = row["before"] if row["attempt"] else None
            if said and said[0] == attempt:
                before = said[1]
            elif before is None:
                before = mark
            if row["attempt"] is None:
                _assign_attempt(connection, row, attempt, before)
            # What others sent and a restored database has lost will not come again: the rest follows what it has.
            return attempt, min(before, mark)

    def _current_row(self, connection: Connection, job_id: str, incarnation: str) -> Any:
        """The row of an incarnation that is the newest, made now if it is new."""
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


def check_current(mine: int | None, newest: int | None, attempt: int, told: int | None) -> None:
    """Let reports of `attempt` in. `mine` is the number of the incarnation that sent them, None if it has not asked;
    `newest` is that of the one that asked last; `told` is the attempt that it was told of, None if of none yet.

    Raises:
        Fenced: another one has asked after it.
        NotRegistered: it has not asked, or was told of another attempt; as far as we remember.
    """
    # A database that was put back to an older state has forgotten who asked since. That fences nobody.
    if mine is None or mine < 1:
        raise NotRegistered()
    if mine != newest:
        raise Fenced(_SUPERSEDED)
    _check_attempt(told, attempt)


def check_posted(
    connection: Connection, job_id: str, incarnation: str, attempt: int, posted_at: datetime
) -> None:
    """Let reports in that an incarnation posted then: what it says while it speaks for its job counts, however late it comes.

    Raises:
        Fenced: another one was there by then, on the same nodes or on later ones.
        NotRegistered: it is not known to be of this attempt.
    """
    mine = _row(connection, job_id, incarnation)
    if mine is None:
        raise NotRegistered()
    _check_attempt(mine["attempt"], attempt)
    # One that posts for the first time from nodes that were given up before ours came replaces nobody.
    later = or_(musters.c.attempt.is_(None), musters.c.attempt >= attempt)
    others = select(musters.c.n).where(
        musters.c.job_id == job_id,
        musters.c.asked_at > mine["asked_at"],
        musters.c.asked_at <= posted_at,
        later,
    )
    if connection.execute(others.limit(1)).first():
        raise Fenced(_SUPERSEDED)


def _check_attempt(told: int | None, attempt: int) -> None:
    if told != attempt:
        raise NotRegistered(
            f"this worker is not registered for attempt {attempt}; it has to register"
        )


def _row(connection: Connection, job_id: str, incarnation: str) -> Any:
    mine = musters.c.job_id == job_id, musters.c.incarnation == incarnation
    return connection.execute(select(musters).where(*mine)).mappings().first()


def _newest(connection: Connection, job_id: str) -> int:
    """The highest number of a job; 0 if there is none."""
    highest = select(func.max(musters.c.n)).where(musters.c.job_id == job_id)
    return connection.execute(highest).scalar() or 0


def _insert_posted(connection: Connection, job_id: str, incarnation: str, at: datetime) -> Any:
    """The row of an incarnation that has posted and never asked."""
    event_log.read(connection, job_id)  # Whether there is such a job.
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
    """Whether somebody asked after an incarnation was first there that has posted alone until now."""
    others = select(musters.c.n).where(
        musters.c.job_id == row["job_id"],
        musters.c.n > 0,
        musters.c.asked_at > row["asked_at"],
    )
    return connection.execute(others.limit(1)).first() is not None


def _position(connection: Connection, row: Any) -> JobPosition | None:
    """The place of an incarnation; None until somebody has looked."""
    job_id: str = row["job_id"]
    attempt: int | None = row["attempt"]
    if attempt is None:
        if not _was_observed_since(connection, job_id, row["asked_at"]):
            return None
        job = event_log.read(connection, job_id)
        # Where its nodes are not told of yet, it stands on the next ones. Two that stand on the same nodes, one after
        # the other, share the attempt: the newer one goes on where the older one was cut off.
        attempt = job.attempt if job.placed else job.attempt + 1
        before = _mark(connection, job_id, attempt)
        _assign_attempt(connection, row, attempt, before)
        return JobPosition(attempt, before + 1, before)
    mark = _mark(connection, job_id, attempt)
    # What others sent and a restored database has lost will not come again.
    before = mark if row["before"] is None else min(row["before"], mark)
    return JobPosition(attempt, mark + 1, before)


def _was_observed_since(connection: Connection, job_id: str, since: datetime) -> bool:
    seen = select(watches.c.seen_at).where(watches.c.job_id == job_id)
    seen_at: datetime | None = connection.execute(seen).scalar()
    return seen_at is not None and seen_at > since


def _attempt_at(connection: Connection, job_id: str, at: datetime) -> int | None:
    """The attempt whose nodes were there at a moment; None while that may not be told yet.

    A launcher loses one placement before it begins the next, and nobody posts before its nodes are there. So it is the newest
    whose nodes were there by then; the first, if clocks differ by so much that none were.
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
    """The highest report that was taken of an attempt."""
    mark = select(report_marks.c.n).where(
        report_marks.c.job_id == job_id, report_marks.c.attempt == attempt
    )
    return connection.execute(mark).scalar() or 0
