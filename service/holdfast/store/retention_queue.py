"""Whose checkpoint store is due to be tidied, which replica has it for now, and what came of the last time.

A job has a row if the service is who removes its old checkpoints. A lease spreads the work and guards nothing: two that
tidy one store at once remove the same things.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, insert, select, update

from holdfast.store.database import reading, writing
from holdfast.store.tables.launches import upkeep


@dataclass(frozen=True, slots=True)
class RetentionLease:
    """A store that is this replica's for now."""

    job_id: str
    until: datetime


@dataclass(frozen=True, slots=True)
class RetentionStatus:
    """How tidy a store is."""

    last_run_at: datetime | None = None
    """When it was tidied last; None before the first time."""
    error: str | None = None
    """Why the last try came to nothing; None when it did not."""
    since: datetime | None = None
    """When the trouble was first met; None without any."""


class RetentionQueue:
    """The stores that the service tidies."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def claim(self, now: datetime, lease_s: float, limit: int) -> list[RetentionLease]:
        """Stores that are due, now leased to the caller; the longest due first."""
        due = select(upkeep.c.job_id).where(upkeep.c.due_at <= now).order_by(upkeep.c.due_at)
        with reading(self._engine) as connection:
            if not connection.execute(due.limit(1)).first():
                return []  # The usual case takes no writer's turn.
        until = now + timedelta(seconds=lease_s)
        with writing(self._engine) as connection:
            claimed = list(connection.execute(due.limit(limit)).scalars())
            mine = update(upkeep).where(upkeep.c.job_id.in_(claimed))
            connection.execute(mine.values(due_at=until))
        return [RetentionLease(job_id, until) for job_id in claimed]

    def mark_done(self, turn: RetentionLease, at: datetime, due_at: datetime | None) -> None:
        """The store was tidied; `due_at` None: for the last time."""
        self._release(turn, due_at, tidied_at=at, trouble=None, since=None)

    def postpone(self, turn: RetentionLease, due_at: datetime) -> None:
        """There was no need to look."""
        self._release(turn, due_at)

    def mark_failed(
        self, turn: RetentionLease, trouble: str, since: datetime, due_at: datetime | None
    ) -> None:
        """The store could not be tidied; `due_at` None: it is not tried again."""
        self._release(turn, due_at, trouble=trouble, since=since)

    def retry(self, now: datetime) -> None:
        """Let all be due that could not be tidied, unless they were given up."""
        troubled = upkeep.c.trouble.is_not(None), upkeep.c.due_at.is_not(None)
        with writing(self._engine) as connection:
            connection.execute(update(upkeep).where(*troubled).values(due_at=now))

    def statuses(self, job_ids: Iterable[str]) -> dict[str, RetentionStatus]:
        """How tidy the stores of some jobs are; those that the service does not tidy are left out."""
        query = select(upkeep).where(upkeep.c.job_id.in_(list(job_ids)))
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings()
            return {
                row["job_id"]: RetentionStatus(row["tidied_at"], row["trouble"], row["since"])
                for row in rows
            }

    def _release(self, turn: RetentionLease, due_at: datetime | None, **told: Any) -> None:
        mine = update(upkeep).where(upkeep.c.job_id == turn.job_id)
        with writing(self._engine) as connection:
            if told:
                connection.execute(mine.values(**told))
            # Whoever took over since, as the lease was over, says himself when to come again.
            connection.execute(mine.where(upkeep.c.due_at == turn.until).values(due_at=due_at))


def enqueue(connection: Connection, job_id: str, due_at: datetime) -> None:
    """Let a new job's store be tidied."""
    connection.execute(insert(upkeep).values(job_id=job_id, due_at=due_at))
