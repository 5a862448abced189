"""The audit log: what people did, in a chain of rows that the database lets nobody change or remove.

A deed is written in the transaction of what it tells, so that neither is there without the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, delete, func, insert, select

from holdfast.domain.deeds import BEGINNING, Deed, Doer, Entry, Head, Verdict, digest, verify
from holdfast.ports import Clock
from holdfast.store.database import reading, writing
from holdfast.store.people_schema import audit, audit_anchors

_PIECE: Final = 1000
"""Rows that are read at once for a look at the whole chain. Smaller: more queries. Bigger: more memory."""

_SLACK: Final = timedelta(days=1)
"""Beyond its time before the oldest row goes. A lower value adds anchors, each with a row of its own; a higher value keeps rows
for longer."""


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
        query = query.where(audit.c.seq > _anchored_seq())
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

    def holds(self, head: Head) -> bool:
        """Whether the row of a head is the one that was written, or was removed by retention."""
        with reading(self._engine) as connection:
            anchor = _anchor(connection)
        if head.seq <= anchor.seq:
            return head.seq < anchor.seq or head == anchor
        return self.at(head.seq) == head

    def expire(self, until: datetime, doer: Doer) -> None:
        """Remove the rows before the first one of `until` or later. An anchor keeps the hash of the last one.

        A removal that was interrupted is continued by the next call.
        """
        with reading(self._engine) as connection:
            is_due = _expired_head(connection, until) is not None
        if is_due:
            with writing(self._engine) as connection:
                # Another replica may have removed them.
                if last := _expired_head(connection, until):
                    now = self._clock.now()
                    anchor = {"seq": last.seq, "hash": last.hash, "at": now}
                    connection.execute(insert(audit_anchors).values(**anchor))
                    append(connection, last.expired(doer), now)
        some = select(audit.c.seq).where(audit.c.seq <= _anchored_seq()).limit(_PIECE)
        removed = _PIECE
        while removed == _PIECE:
            with writing(self._engine) as connection:
                removed = connection.execute(delete(audit).where(audit.c.seq.in_(some))).rowcount

    def verify(self, kept: Iterable[Head] = ()) -> Verdict:
        """Whether every row is the one that was written; `kept` are heads that were kept elsewhere."""
        with reading(self._engine) as connection:
            anchor = _anchor(connection)
        return verify(self._all(anchor), kept, anchor)

    def _all(self, anchor: Head) -> Iterator[Entry]:
        # Whoever puts a row in may give it any number. Rows up to an anchor are about to be removed.
        seen = anchor.seq or -(2**62)
        while True:
            query = select(audit).where(audit.c.seq > seen).order_by(audit.c.seq).limit(_PIECE)
            try:
                with reading(self._engine) as connection:
                    rows = connection.execute(query).mappings().all()
            except (TypeError, ValueError):
                yield from self._one_by_one(seen)
                return
            yield from map(_entry, rows)
            if len(rows) < _PIECE:
                return
            seen = rows[-1]["seq"]

    def _one_by_one(self, seen: int) -> Iterator[Entry]:
        """The rows after `seen`, up to the first that has a value of another type, which was put in by hand."""
        after = select(audit.c.seq).where(audit.c.seq > seen).order_by(audit.c.seq).limit(_PIECE)
        with reading(self._engine) as connection:
            for seq in connection.execute(after).scalars().all():
                try:
                    row = connection.execute(select(audit).where(audit.c.seq == seq))
                    yield _entry(row.mappings().one())
                except (TypeError, ValueError):
                    nothing = Deed(doer=Doer(name=""), action="", target="")
                    yield Entry(
                        seq=seq, at=self._clock.now(), deed=nothing, previous_hash="", hash=""
                    )
                    return


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


def _anchored_seq() -> Any:
    """The last row that was removed by retention, as a subquery; 0 where none was."""
    return select(func.coalesce(func.max(audit_anchors.c.seq), 0)).scalar_subquery()


def _anchor(connection: Connection) -> Head:
    newest = select(audit_anchors.c.seq, audit_anchors.c.hash)
    row = connection.execute(newest.order_by(audit_anchors.c.seq.desc()).limit(1)).first()
    return Head(seq=row.seq, hash=row.hash) if row else Head()


def _expired_head(connection: Connection, until: datetime) -> Head | None:
    """The last row before the first one of `until` or later; None where the first row is not old enough."""
    rows = select(audit.c.seq, audit.c.at, audit.c.hash).where(audit.c.seq > _anchored_seq())
    first = connection.execute(rows.order_by(audit.c.seq).limit(1)).first()
    if first is None or first.at >= until - _SLACK:
        return None
    newer = select(func.min(audit.c.seq)).where(audit.c.at >= until, audit.c.seq > first.seq)
    kept = connection.execute(newer).scalar() or _head(connection).seq + 1
    old = rows.where(audit.c.seq < kept).order_by(audit.c.seq.desc()).limit(1)
    row = connection.execute(old).one()
    return Head(seq=row.seq, hash=row.hash)


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
