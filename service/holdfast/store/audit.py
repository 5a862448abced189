"""The audit log: what people did, in a chain of rows that the database lets nobody change or remove.

A deed is written in the transaction of what it tells, so that neither is there without the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Engine, insert, select

from holdfast.domain.deeds import BEGINNING, Deed, Doer, Entry, Head, Verdict, digest, verify
from holdfast.ports import Clock
from holdfast.store.database import reading, writing
from holdfast.store.people_schema import audit

_PIECE: Final = 1000
"""Rows that are read at once for a look at the whole chain. Smaller: more queries. Bigger: more memory."""


class Audit:
    """All that was done."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def note(self, deed: Deed) -> None:
        """Write a deed that changes nothing else, such as a login."""
        with writing(self._engine) as connection:
            append(connection, deed, self._clock.now())

    def page(
        self,
        *,
        limit: int,
        before: int | None = None,
        actor: str | None = None,
        target: str | None = None,
    ) -> list[Entry]:
        """The newest rows before the row `before`, newest first; of one actor or about one target, if one is named."""
        query = select(audit).order_by(audit.c.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.seq < before)
        if actor is not None:
            query = query.where(audit.c.actor == actor)
        if target is not None:
            query = query.where(audit.c.target == target)
        with reading(self._engine) as connection:
            return [_entry(row) for row in connection.execute(query).mappings()]

    def head(self) -> Head:
        """The newest row."""
        with reading(self._engine) as connection:
            return _head(connection)

    def at(self, seq: int) -> Head | None:
        """The row of a number; None where there is none."""
        with reading(self._engine) as connection:
            query = select(audit.c.seq, audit.c.hash).where(audit.c.seq == seq)
            row = connection.execute(query).first()
        return Head(seq=row.seq, hash=row.hash) if row else None

    def verify(self, kept: Iterable[Head] = ()) -> Verdict:
        """Whether every row is the one that was written; `kept` are heads that were kept elsewhere."""
        return verify(self._all(), kept)

    def _all(self) -> Iterator[Entry]:
        seen = -(2**62)  # Whoever puts a row in may give it any number.
        while True:
            query = select(audit).where(audit.c.seq > seen).order_by(audit.c.seq).limit(_PIECE)
            with reading(self._engine) as connection:
                rows = connection.execute(query).mappings().all()
            yield from map(_entry, rows)
            if len(rows) < _PIECE:
                return
            seen = rows[-1]["seq"]


def append(connection: Connection, deed: Deed, now: datetime) -> None:
    """Write a deed as the newest row; the caller's transaction is alone in writing."""
    head = _head(connection)
    seq = head.seq + 1
    row = {
        "seq": seq,
        "at": now,
        "actor": deed.doer.name,
        "token_id": deed.doer.token_id,
        "address": deed.doer.address,
        "request_id": deed.doer.request_id,
        "action": deed.action,
        "target": deed.target,
        "before": deed.before,
        "after": deed.after,
        "previous_hash": head.hash,
        "hash": digest(head.hash, seq, now, deed),
    }
    connection.execute(insert(audit).values(**row))


def _head(connection: Connection) -> Head:
    newest = select(audit.c.seq, audit.c.hash).order_by(audit.c.seq.desc()).limit(1)
    row = connection.execute(newest).first()
    return Head(seq=row.seq, hash=row.hash) if row else Head(seq=0, hash=BEGINNING)


def _entry(row: Any) -> Entry:
    doer = Doer(
        name=row["actor"],
        token_id=row["token_id"],
        address=row["address"],
        request_id=row["request_id"],
    )
    deed = Deed(
        doer=doer,
        action=row["action"],
        target=row["target"],
        before=row["before"],
        after=row["after"],
    )
    return Entry(
        seq=row["seq"],
        at=row["at"],
        deed=deed,
        previous_hash=row["previous_hash"],
        hash=row["hash"],
    )
