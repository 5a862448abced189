"""The audit log: user actions in a hash chain of rows, which the database protects.

An action is recorded in the transaction of its change, so that neither exists without the other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    Select,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
)
from sqlalchemy.exc import DataError

from holdfast.domain.access.audit import (
    GENESIS_HASH,
    Actor,
    AuditAction,
    AuditEntry,
    ChainHead,
    ChainVerification,
    action_columns,
    digest,
    verify,
)
from holdfast.ports import Clock
from holdfast.store.database import reading, writing
from holdfast.store.tables.identity import audit, audit_anchors

_BATCH_ROWS: Final = 1000
"""Rows read at once for a verification. A lower value adds queries; a higher value uses more memory."""

_SEARCHED_ROWS: Final = 100_000
"""Newest rows in which the last backup is searched. A lower value misses it after many actions; a higher value
reads more rows for each scrape where backups are made by other means."""

_SLACK: Final = timedelta(days=1)
"""How far the oldest row exceeds its retention time before it is removed. A lower value adds
anchors, each with its own row; a higher value keeps rows for longer."""
UNREADABLE: Final = "(unreadable)"
"""Placeholder for a value that is not text. No user can have this name."""
_NO_TIME: Final = datetime.fromtimestamp(0, UTC)
_ILL_TYPED: Final = (TypeError, ValueError, RecursionError, DataError)
"""Exceptions raised for a value that does not have the type of its column. SQLite stores any type
in any column."""
_PLACEHOLDERS: Final[Mapping[str, tuple[Any, Any]]] = {
    "at": (datetime, _NO_TIME),
    **dict.fromkeys(("actor", "action", "target", "previous_hash", "hash"), (str, UNREADABLE)),
    **dict.fromkeys(("token_id", "address", "request_id"), (str | None, UNREADABLE)),
    **dict.fromkeys(("before", "after"), (dict | None, {UNREADABLE: True})),
}
"""The type of each column, and the placeholder for a value of a different type."""
_NUMBERED: Final = audit.c.seq == cast(audit.c.seq, BigInteger)
"""Whether the number of a row is an integer. A manually inserted row may have a different one; only
`verify` finds it."""
_IS_ANCHOR: Final = audit_anchors.c.seq == cast(audit_anchors.c.seq, BigInteger)
_UNNUMBERED: Final = select(func.count()).where(or_(audit.c.seq.is_(None), ~_NUMBERED))


class AuditLog:
    """The recorded user actions."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def record(self, action: AuditAction) -> None:
        """Record an action that changes nothing else, such as a login."""
        with writing(self._engine) as connection:
            append(connection, action, self._clock.now())

    def page(
        self,
        *,
        limit: int,
        before: int | None = None,
        actor: str | None = None,
        target: str | None = None,
    ) -> list[AuditEntry]:
        """The newest rows before the row `before`, newest first.

        Only those of `actor`, or about `target`, if given.
        """
        query = select(audit).where(_NUMBERED).order_by(audit.c.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.seq < before)
        query = query.where(audit.c.seq > _anchored_seq())
        if actor is not None:
            query = query.where(audit.c.actor == actor)
        if target is not None:
            query = query.where(audit.c.target == target)
        with _reading_any_text(self._engine) as connection:
            return _entries(connection, query)

    def head(self) -> ChainHead:
        """The newest row."""
        with _reading_any_text(self._engine) as connection:
            return _head(connection)

    def newest_at(self, actor: str) -> datetime | None:
        """Time of the newest row of an actor among the newest `_SEARCHED_ROWS`; None without one."""
        with _reading_any_text(self._engine) as connection:
            newest = select(func.max(audit.c.seq)).where(_NUMBERED).scalar_subquery()
            recent = audit.c.actor == actor, audit.c.seq > newest - _SEARCHED_ROWS
            query = select(audit).where(_NUMBERED, *recent).order_by(audit.c.seq.desc()).limit(1)
            found = _entries(connection, query)
        return found[0].at if found else None

    def head_at(self, seq: int) -> ChainHead | None:
        """The row with a number; None if there is none."""
        with _reading_any_text(self._engine) as connection:
            query = select(audit.c.seq, audit.c.hash).where(audit.c.seq == seq)
            row = connection.execute(query).first()
        return _head_of(row) if row else None

    def contains(self, head: ChainHead) -> bool:
        """Whether the row of a head is unchanged, or was removed by retention."""
        with _reading_any_text(self._engine) as connection:
            anchor = _anchor(connection)
        if head.seq <= anchor.seq:
            return head.seq < anchor.seq or head == anchor
        return self.head_at(head.seq) == head

    def expire(self, until: datetime, actor: Actor) -> None:
        """Remove the rows before the first one of `until` or later.

        An anchor keeps the hash of the last removed row. A removal that was interrupted is
        continued by the next call.
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
                    append(connection, last.expiry_action(actor), now)
        some = select(audit.c.seq).where(audit.c.seq <= _anchored_seq()).limit(_BATCH_ROWS)
        removed = _BATCH_ROWS
        while removed == _BATCH_ROWS:
            with writing(self._engine) as connection:
                removed = connection.execute(delete(audit).where(audit.c.seq.in_(some))).rowcount

    def verify(self, kept: Iterable[ChainHead] = ()) -> ChainVerification:
        """Verify that every row is unchanged; `kept` are heads stored outside of the database."""
        with _reading_any_text(self._engine) as connection:
            anchor = _anchor(connection)
            unnumbered = connection.execute(_UNNUMBERED).scalar_one()
        result = verify(self._iterate(anchor), kept, anchor)
        if unnumbered and result.broken_seq is None:
            problem = f"{unnumbered} rows have a seq that is not an integer: they were inserted or changed manually"
            return replace(result, broken_seq=result.head.seq + 1, problem=problem)
        return result

    def _iterate(self, anchor: ChainHead) -> Iterator[AuditEntry]:
        # A manually inserted row may have any number. Rows up to an anchor are about to be removed.
        seen = anchor.seq or -(2**62)
        rows = select(audit).where(_NUMBERED).order_by(audit.c.seq).limit(_BATCH_ROWS)
        while True:
            with _reading_any_text(self._engine) as connection:
                piece = _entries(connection, rows.where(audit.c.seq > seen))
            yield from piece
            if len(piece) < _BATCH_ROWS:
                return
            seen = piece[-1].seq


def append(connection: Connection, action: AuditAction, now: datetime) -> None:
    """Append an action as the newest row, in the caller's exclusive write transaction."""
    with _lenient(connection):
        head = _head(connection)
    seq = head.seq + 1
    row = {
        "seq": seq,
        "at": now,
        **action_columns(action),
        "previous_hash": head.hash,
        "hash": digest(head.hash, seq, now, action),
    }
    connection.execute(insert(audit).values(**row))


@contextmanager
def _reading_any_text(engine: Engine) -> Iterator[Connection]:
    """A read transaction that also reads texts that are not UTF-8."""
    with reading(engine) as connection, _lenient(connection):
        yield connection


@contextmanager
def _lenient(connection: Connection) -> Iterator[None]:
    """Make SQLite return a text that is not UTF-8, with surrogates.

    Otherwise, reading it is an error of the database.
    """
    driver = connection.connection.dbapi_connection
    if not isinstance(driver, sqlite3.Connection):
        yield
        return
    driver.text_factory = _decoded
    try:
        yield
    finally:
        driver.text_factory = str


def _decoded(text: bytes) -> str:
    return text.decode(errors="surrogateescape")


def _anchored_seq() -> Any:
    """The last row that retention removed, as a subquery; 0 if there is none."""
    return (
        select(func.coalesce(func.max(audit_anchors.c.seq), 0)).where(_IS_ANCHOR).scalar_subquery()
    )


def _anchor(connection: Connection) -> ChainHead:
    newest = select(audit_anchors.c.seq, audit_anchors.c.hash).where(_IS_ANCHOR)
    row = connection.execute(newest.order_by(audit_anchors.c.seq.desc()).limit(1)).first()
    return _head_of(row) if row else ChainHead()


def _expired_head(connection: Connection, until: datetime) -> ChainHead | None:
    """The last row before the first one of `until` or later; None if no row is old enough."""
    rows = select(audit.c.seq, audit.c.hash).where(_NUMBERED, audit.c.seq > _anchored_seq())
    is_old = (audit.c.at < until - _SLACK).label("is_old")
    first = connection.execute(rows.add_columns(is_old).order_by(audit.c.seq).limit(1)).first()
    if first is None or not first.is_old:
        return None
    newer = select(func.min(audit.c.seq)).where(audit.c.at >= until, audit.c.seq > first.seq)
    kept = connection.execute(newer.where(_NUMBERED)).scalar() or _head(connection).seq + 1
    old = rows.where(audit.c.seq < kept).order_by(audit.c.seq.desc()).limit(1)
    return _head_of(connection.execute(old).one())


def _head(connection: Connection) -> ChainHead:
    newest = select(audit.c.seq, audit.c.hash).where(_NUMBERED)
    row = connection.execute(newest.order_by(audit.c.seq.desc()).limit(1)).first()
    return _head_of(row) if row else ChainHead(seq=0, hash=GENESIS_HASH)


def _head_of(row: Any) -> ChainHead:
    return ChainHead(seq=row.seq, hash=row.hash if _has_type(row.hash, str) else UNREADABLE)


def _entries(connection: Connection, query: Select[Any]) -> list[AuditEntry]:
    """The rows of a query for whole rows, with placeholders for values of a wrong type."""
    try:
        return [_entry(row) for row in connection.execute(query).mappings()]
    except _ILL_TYPED:
        numbers = connection.execute(query.with_only_columns(audit.c.seq)).scalars().all()
        return [_entry(_row(connection, seq)) for seq in numbers]


def _row(connection: Connection, seq: int) -> Mapping[Any, Any]:
    """One row; an exception replaces a value that cannot be read."""
    try:
        return connection.execute(select(audit).where(audit.c.seq == seq)).mappings().one()
    except _ILL_TYPED:
        return {column.name: _value(connection, column, seq) for column in audit.c}


def _value(connection: Connection, column: Any, seq: int) -> object:
    try:
        return connection.execute(select(column).where(audit.c.seq == seq)).scalar_one()
    except _ILL_TYPED as error:
        return error


def _has_type(value: object, kind: Any) -> bool:
    """Whether a value is of a type; a text must be valid Unicode."""
    if not isinstance(value, kind):
        return False
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def _entry(found: Mapping[Any, Any]) -> AuditEntry:
    unreadable = tuple(
        name for name, (kind, _) in _PLACEHOLDERS.items() if not _has_type(found[name], kind)
    )
    row = {**found, **{name: _PLACEHOLDERS[name][1] for name in unreadable}}
    actor = Actor(
        name=row["actor"],
        token_id=row["token_id"],
        address=row["address"],
        request_id=row["request_id"],
    )
    action = AuditAction(
        actor=actor,
        action=row["action"],
        target=row["target"],
        before=row["before"],
        after=row["after"],
    )
    return AuditEntry(
        seq=row["seq"],
        at=row["at"],
        audit_action=action,
        previous_hash=row["previous_hash"],
        hash=row["hash"],
        unreadable=unreadable,
    )
