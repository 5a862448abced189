"""Whose turn it is: which jobs are due for a look, and which replica has them for now.

A lease spreads the work; it guards nothing. Two replicas that look at the same job at once are held apart by the
journal's key.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Engine, func, select, update

from holdfast.store.database import reading, writing
from holdfast.store.schema import watches


class Watches:
    """The list of jobs that are being watched."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def claim(self, now: datetime, lease_s: float, limit: int) -> list[str]:
        """Jobs that are due, now leased to the caller until `now + lease_s`; the longest due first."""
        due = (
            select(watches.c.job_id)
            .where(watches.c.due_at <= now)
            .order_by(watches.c.due_at)
            .limit(limit)
        )
        with reading(self._engine) as connection:
            if not connection.execute(due.limit(1)).first():
                return []  # The usual case takes no writer's turn.
        with writing(self._engine) as connection:
            claimed = list(connection.execute(due).scalars())
            until = now + timedelta(seconds=lease_s)
            connection.execute(
                update(watches).where(watches.c.job_id.in_(claimed)).values(due_at=until)
            )
        return claimed

    def release(
        self, job_id: str, *, due_at: datetime, seen_at: datetime | None, trouble: str | None
    ) -> None:
        """Say when to look next, and what came of this look; `seen_at` None leaves the last answer's time."""
        change = {"due_at": due_at, "trouble": trouble} | ({"seen_at": seen_at} if seen_at else {})
        with writing(self._engine) as connection:
            connection.execute(update(watches).where(watches.c.job_id == job_id).values(**change))

    def close(self, job_id: str) -> None:
        """Stop watching a job that has ended."""
        with writing(self._engine) as connection:
            connection.execute(watches.delete().where(watches.c.job_id == job_id))

    def nudge(self, job_id: str, now: datetime) -> None:
        """Make a job due at once."""
        with writing(self._engine) as connection:
            connection.execute(update(watches).where(watches.c.job_id == job_id).values(due_at=now))

    def next_due(self) -> datetime | None:
        """When the next job is due; None when none is watched."""
        with reading(self._engine) as connection:
            due: datetime | None = connection.execute(select(func.min(watches.c.due_at))).scalar()
        return due
