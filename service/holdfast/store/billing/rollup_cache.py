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

MOST: Final = 64
"""Questions in mind. Fewer: a page of many sums has each added up anew; more: memory, up to a MB for each."""
LONGEST: Final = 1000
"""Sums of an answer that is kept in mind. Fewer: usual lists are added up each time; more: memory, about 1 kB for each."""

Only: TypeAlias = Select[tuple[str]] | None
"""The jobs whose rows are added up; None: all."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Mark:
    """Which jobs were in rows. Rows that were made again have a greater number, and are no more jobs than before."""

    jobs: int
    newest: int


class RollupCache:
    """What was asked of the rows, with its answers. They are shared: nobody changes one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: OrderedDict[Hashable, tuple[_Mark, Any]] = OrderedDict()
        self._alone = Lock()

    def of(
        self, question: Hashable, read: Callable[[Connection, Only], T], add: Callable[[T, T], T]
    ) -> T:
        """What `read` says of all jobs. Of some it is read anew, and added by `add` to what was known of the others."""
        with self._alone:
            known = self._known.get(question)
        # All of it is seen as it was at one moment: no job is counted here, and added once more the next time.
        with reading(self._engine) as connection:
            mark = _mark(connection)
            if known is None or (more := _added(connection, known[0], mark)) is None:
                found = read(connection, None)
            else:
                found = add(known[1], read(connection, _since(known[0]))) if more else known[1]
        if isinstance(found, Sized) and len(found) > LONGEST:
            return found
        with self._alone:
            self._known[question] = mark, found
            self._known.move_to_end(question)
            while len(self._known) > MOST:
                self._known.popitem(last=False)
        return found


def _mark(connection: Connection) -> _Mark:
    query = select(func.count(), func.coalesce(func.max(ledgers.c.number), 0)).select_from(ledgers)
    jobs, newest = connection.execute(query).one()
    return _Mark(jobs, newest)


def _added(connection: Connection, before: _Mark, now: _Mark) -> int | None:
    """How many jobs came in rows since; None where those of others were made again."""
    if now == before:
        return 0
    query = select(func.count()).select_from(_since(before).subquery())
    more: int = connection.execute(query).scalar_one()
    return more if before.jobs + more == now.jobs else None


def _since(mark: _Mark) -> Select[tuple[str]]:
    return select(ledgers.c.job_id).where(ledgers.c.number > mark.newest)
