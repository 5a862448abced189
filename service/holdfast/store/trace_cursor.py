"""Which events of jobs are already in exported traces, in commit order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Engine, func, insert, select, update

from holdfast.domain.events import Event, decode
from holdfast.store.database import reading, writing
from holdfast.store.tables.jobs import job_events
from holdfast.store.tables.notifications import news_marks

BATCH: Final = 500
"""Events in one batch. A lower value adds queries after a pause; a higher value uses more memory."""

_NAME: Final = "traces"


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """An event with its numbers within its job and among all events."""

    job_id: str
    seq: int
    cursor: int
    event: Event


class TraceCursor:
    """The cursor of the exported events, which a service keeps for all its replicas."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self) -> int:
        """The cursor of the last exported event; at the first call, of the newest event.

        Jobs that ended before are not exported.
        """
        query = select(news_marks.c.cursor).where(news_marks.c.name == _NAME)
        with reading(self._engine) as connection:
            known: int | None = connection.execute(query).scalar()
        if known is not None:
            return known
        with writing(self._engine) as connection:
            known = connection.execute(query).scalar()
            if known is None:
                newest = select(func.coalesce(func.max(job_events.c.cursor), 0))
                known = int(connection.execute(newest).scalar_one())
                connection.execute(insert(news_marks).values(name=_NAME, cursor=known))
        return known

    def advance(self, cursor: int) -> None:
        """Record that the events up to `cursor` are exported; another replica may be further."""
        mine = update(news_marks).where(news_marks.c.name == _NAME, news_marks.c.cursor < cursor)
        with writing(self._engine) as connection:
            connection.execute(mine.values(cursor=cursor))

    def events_after(self, cursor: int) -> Sequence[NumberedEvent]:
        """The next events of all jobs, at most `BATCH`."""
        query = select(job_events).where(job_events.c.cursor > cursor)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(job_events.c.cursor).limit(BATCH)).mappings()
            return [_numbered(row) for row in rows]

    def events_of(self, job_id: str, before: int) -> Sequence[NumberedEvent]:
        """The events of a job before number `before`."""
        query = select(job_events).where(job_events.c.job_id == job_id, job_events.c.seq < before)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(job_events.c.seq)).mappings()
            return [_numbered(row) for row in rows]


def _numbered(row: Any) -> NumberedEvent:
    event = decode(row["kind"], row["at"], row["body"])
    return NumberedEvent(row["job_id"], row["seq"], row["cursor"], event)
