"""A cache of sums over rows of closed jobs.

A repeated question reads only the rows of jobs added since.
"""

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
"""Cached questions. A lower value sums up pages with many sums again; a higher value uses more
memory, up to a MB for each."""
MAX_ANSWER_LENGTH: Final = 1000
"""Sums in a cached answer. A lower value sums up usual lists again; a higher value uses more
memory, about 1 kB for each."""

Only: TypeAlias = Select[tuple[str]] | None
"""The jobs whose rows are summed up; None: all."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Watermark:
    """The rows that were read, by their greatest number and count.

    A row that is written again gets a greater number, without a change of the count.
    """

    jobs: int
    newest: int


class RollupCache:
    """Cached answers of questions about rows. They are shared and must not be modified."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answers: OrderedDict[Hashable, tuple[_Watermark, Any]] = OrderedDict()
        self._lock = Lock()

    def get(
        self, question: Hashable, read: Callable[[Connection, Only], T], add: Callable[[T, T], T]
    ) -> T:
        """The result of `read` over all jobs.

        Only jobs added since the last call are read, and `add` adds them to the cached result.
        """
        with self._lock:
            known = self._answers.get(question)
        # One snapshot: no job is counted both here and by the next call.
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
    """The number of jobs added since; None if rows of other jobs were written again."""
    if now == before:
        return 0
    query = select(func.count()).select_from(_since(before).subquery())
    more: int = connection.execute(query).scalar_one()
    return more if before.jobs + more == now.jobs else None


def _since(mark: _Watermark) -> Select[tuple[str]]:
    return select(ledgers.c.job_id).where(ledgers.c.number > mark.newest)
