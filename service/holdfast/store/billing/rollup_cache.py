"""Sums over rows of jobs that have ended, kept in mind: who asks again waits for those jobs alone that were added since."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sized
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, Select, func, select

from holdfast.store.database import reading
from holdfast.store.tables.billing import ledgers

MAX_ANSWERS: Final = 64
"""Questions in mind. Fewer: a page of many sums has each added up anew; more: memory, up to a MB for each."""
MAX_ANSWER_LENGTH: Final = 1000
"""Sums of an answer that is kept in mind. Fewer: usual lists are added up each time; more: memory, about 1 kB for each."""

Only: TypeAlias = Select[tuple[str]] | None
"""The jobs whose rows are added up; None: all."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Watermark:
    """Which jobs were in rows. Rows that were made again have a greater number, and are no more jobs than before."""

    jobs: int
    newest: int


class RollupCache:
    """What was asked of the rows, with its answers. They are shared: nobody changes one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answers: OrderedDict[Hashable, tuple[_Watermark, Any]] = OrderedDict()
        self._lock = Lock()

    def get(
        self, question: Hashable, read: Callable[[Connection, Only], T], add: Callable[[T, T], T]
    ) -> T:
        """What `read` says of all jobs. Of some it is read anew, and added by `add` to what was known of the others."""
        with self._lock:
            known = self._answers.get(question)
        # All of it is seen as it was at one moment: no job is counted here, and added once more the next time.
        with reading(self._engine) as connection:
            mark = _read_watermark(connection)
            if known is None or (more := _added(connection, known[0], mark)) is None:
                found = read(connection, None)
            else:
                found = add(known[1], read(connection, _since(known[0]))) if more else known[1]
        if isinstance(found, Sized) and len(found) > MAX_ANSWER_LENGTH:
            return found
        with self._lock:
            self._answers[question] = mark, found
            self._answers.move_to_end(question)
            while len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        return found


def _read_watermark(connection: Connection) -> _Watermark:
    query = select(func.count(), func.coalesce(func.max(ledgers.c.number), 0)).select_from(ledgers)
    jobs, newest = connection.execute(query).one()
    return _Watermark(jobs, newest)


def _added(connection: Connection, before: _Watermark, now: _Watermark) -> int | None:
    """How many jobs came in rows since; None where those of others were made again."""
    if now == before:
        return 0
    query = select(func.count()).select_from(_since(before).subquery())
    more: int = connection.execute(query).scalar_one()
    return more if before.jobs + more == now.jobs else None


def _since(mark: _Watermark) -> Select[tuple[str]]:
    return select(ledgers.c.job_id).where(ledgers.c.number > mark.newest)
