"""Sessions of browsers, which can be ended here and are valid as long as their token."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine, delete, insert, select, update

from holdfast.domain.access.audit import Actor
from holdfast.store import audit_log
from holdfast.store.database import reading, writing
from holdfast.store.tables.identity import sessions

IDLE: Final = timedelta(hours=8)
"""Time after which an unused session ends. A lower value makes users log in twice a day; a higher
value leaves unattended machines logged in."""
USE_RECORDED_EVERY: Final = timedelta(minutes=1)
"""Precision of the last use. A lower value adds writes; a higher value ends a session that much too
early."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A stored session."""

    id_sha256: str
    token_id: str
    csrf: str
    """A value that a page sends with each change; other sites cannot read it."""
    created_at: datetime
    seen_at: datetime
    """To the minute."""

    @property
    def ends_at(self) -> datetime:
        """When the session ends unless it is used before."""
        return self.seen_at + IDLE


class Sessions:
    """The sessions of all users."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def start(
        self, token_id: str, now: datetime, actor: Actor, instead_of: str | None = None
    ) -> tuple[str, Session]:
        """Start a session; return the value of its cookie, and the session.

        The session `instead_of`, from before in the same browser, ends.
        """
        text = secrets.token_urlsafe(32)
        session = Session(
            id_sha256=_digest(text),
            token_id=token_id,
            csrf=secrets.token_urlsafe(32),
            created_at=now,
            seen_at=now,
        )
        row = {name: getattr(session, name) for name in Session.__slots__}
        with writing(self._engine) as connection:
            connection.execute(delete(sessions).where(sessions.c.seen_at <= now - IDLE))
            if instead_of:
                before = sessions.c.id_sha256 == _digest(instead_of)
                connection.execute(delete(sessions).where(before))
            connection.execute(insert(sessions).values(**row))
            audit_log.append(connection, actor.audit_action("session.begin", actor.name), now)
        return text, session

    def find(self, text: str, now: datetime) -> Session | None:
        """The session of a cookie; None if it does not exist or has ended."""
        mine = sessions.c.id_sha256 == _digest(text)
        with reading(self._engine) as connection:
            row = connection.execute(select(sessions).where(mine)).mappings().first()
        session = Session(**row) if row else None
        return session if session and now < session.ends_at else None

    def record_use(self, session: Session, now: datetime) -> None:
        """Record the use of a session, at most once a minute."""
        if now - session.seen_at >= USE_RECORDED_EVERY:
            mine = update(sessions).where(sessions.c.id_sha256 == session.id_sha256)
            with writing(self._engine) as connection:
                connection.execute(mine.values(seen_at=now))

    def end(self, session: Session, now: datetime, actor: Actor) -> None:
        """End a session; its cookie is no longer valid."""
        mine = sessions.c.id_sha256 == session.id_sha256
        with writing(self._engine) as connection:
            if connection.execute(delete(sessions).where(mine)).rowcount:
                audit_log.append(connection, actor.audit_action("session.end", actor.name), now)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
