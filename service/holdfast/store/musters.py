"""Which worker speaks for a job, where the launcher recovers by itself and gives each placement the same environment.

Such a worker does not know its attempt. It draws a name for itself, its incarnation, and asks. The newest to have
asked speaks for the job; all before it are fenced. Which attempt it is, only a look can tell that began after the
worker was there: the loss of the placement before it is then seen for sure, its own placement perhaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Engine, func, insert, select, update

from holdfast.domain.job import LEAVING, State
from holdfast.errors import Fenced, NotLookedYet, NotMustered
from holdfast.ports import Clock
from holdfast.store import folds
from holdfast.store.database import writing
from holdfast.store.schema import musters, report_marks, watches

_TAKEN_OVER: Final = "another worker has mustered for this job since; stop, and save nothing more"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker stands in its job."""

    attempt: int
    next: int
    """Number of the report that is wanted next."""


class Musters:
    """The workers that have asked."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def call(self, job_id: str, incarnation: str) -> Place:
        """The place of the newest worker of a job; the first call of an incarnation makes it the newest.

        Raises:
            NotFound: there is no such job.
            Fenced: another worker asked after this one, or the job has ended, or is about to and this one is new.
            NotLookedYet: nobody has looked at the launcher since it asked first; its call is kept.
        """
        with writing(self._engine) as connection:
            row = self._enlisted(connection, job_id, incarnation)
            place = _place(connection, row)
        if place is None:
            raise NotLookedYet()
        return place

    def _enlisted(self, connection: Connection, job_id: str, incarnation: str) -> Any:
        """The row of an incarnation that is the newest, made now if it is new."""
        state = folds.read(connection, job_id).state
        if state is State.ENDED:
            raise Fenced(f"job {job_id} has ended; stop")
        if state is State.PAUSED:
            raise Fenced(f"job {job_id} is paused, and nothing of it is to run; stop")
        row = _row(connection, job_id, incarnation)
        if row is None and state in LEAVING:
            raise Fenced(f"job {job_id} is {state}, and nothing of it is begun any more; stop")
        if row is None:
            now = self._clock.now()
            count = select(func.coalesce(func.max(musters.c.n), 0)).where(
                musters.c.job_id == job_id
            )
            row = {
                "job_id": job_id,
                "n": connection.execute(count).scalar_one() + 1,
                "incarnation": incarnation,
                "asked_at": now,
                "attempt": None,
            }
            connection.execute(insert(musters).values(**row))
            connection.execute(update(watches).where(watches.c.job_id == job_id).values(due_at=now))
        elif row["n"] != _newest(connection, job_id)["n"]:
            raise Fenced(_TAKEN_OVER)
        return row


def judge(mine: int | None, newest: int | None, attempt: int, told: int | None) -> None:
    """Let reports of `attempt` in. `mine` is the number of the incarnation that sent them, None if it has not asked;
    `newest` is that of the one that asked last; `told` is the attempt that it was told of, None if of none yet.

    Raises:
        Fenced: another one has asked after it.
        NotMustered: it has not asked, or was told of another attempt; as far as we remember.
    """
    # A database that was put back to an older state has forgotten who asked since. That fences nobody.
    if mine is None:
        raise NotMustered()
    if mine != newest:
        raise Fenced(_TAKEN_OVER)
    if told != attempt:
        raise NotMustered(
            f"this worker is not known as that of attempt {attempt}; it has to muster"
        )


def _row(connection: Connection, job_id: str, incarnation: str) -> Any:
    mine = musters.c.job_id == job_id, musters.c.incarnation == incarnation
    return connection.execute(select(musters).where(*mine)).mappings().first()


def _newest(connection: Connection, job_id: str) -> Any:
    order = musters.c.n.desc()
    query = select(musters).where(musters.c.job_id == job_id).order_by(order).limit(1)
    return connection.execute(query).mappings().first()


def _place(connection: Connection, row: Any) -> Place | None:
    """The place of an incarnation; None until somebody has looked."""
    job_id: str = row["job_id"]
    attempt: int | None = row["attempt"]
    if attempt is None:
        seen = select(watches.c.seen_at).where(watches.c.job_id == job_id)
        seen_at: datetime | None = connection.execute(seen).scalar()
        if seen_at is None or seen_at <= row["asked_at"]:
            return None
        job = folds.read(connection, job_id)
        # Where its nodes are not told of yet, it stands on the next ones. Two that stand on the same nodes, one after
        # the other, share the attempt: the newer one goes on where the older one was cut off.
        attempt = job.attempt if job.placed else job.attempt + 1
        mine = musters.c.job_id == job_id, musters.c.n == row["n"]
        connection.execute(update(musters).where(*mine).values(attempt=attempt))
    mark = select(report_marks.c.n).where(
        report_marks.c.job_id == job_id, report_marks.c.attempt == attempt
    )
    return Place(attempt, (connection.execute(mark).scalar() or 0) + 1)
