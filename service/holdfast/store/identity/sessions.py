"""Sessions of browsers: kept here, so that they can be ended here, and good for as long as the token they began with."""

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
"""How long a session goes on that nobody uses. Smaller: people log in twice a day. Bigger: so does whoever finds the
machine unlocked."""
USE_RECORDED_EVERY: Final = timedelta(minutes=1)
"""How exactly the last use is known. Smaller: more writes. Bigger: a session ends that much too early."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """What is kept of a session."""

    id_sha256: str
    token_id: str
    csrf: str
    """What a page has to send along with whatever changes something; other pages cannot read it."""
    created_at: datetime
    seen_at: datetime
    """To the minute."""

    @property
    def ends_at(self) -> datetime:
        """When it is over unless it is used before."""
        return self.seen_at + IDLE


class Sessions:
    """All that have begun."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def start(
        self, token_id: str, now: datetime, doer: Actor, instead_of: str | None = None
    ) -> tuple[str, Session]:
        """A new session with its id, which is what the cookie holds; the one that the browser had before is over."""
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
            audit_log.append(connection, doer.audit_action("session.begin", doer.name), now)
        return text, session

    def find(self, text: str, now: datetime) -> Session | None:
        """The session of a cookie; None where there is none, or none any more."""
        mine = sessions.c.id_sha256 == _digest(text)
        with reading(self._engine) as connection:
            row = connection.execute(select(sessions).where(mine)).mappings().first()
        session = Session(**row) if row else None
        return session if session and now < session.ends_at else None

    def record_use(self, session: Session, now: datetime) -> None:
        """Say that a session is used now; written at most once a minute."""
        if now - session.seen_at >= USE_RECORDED_EVERY:
            mine = update(sessions).where(sessions.c.id_sha256 == session.id_sha256)
            with writing(self._engine) as connection:
                connection.execute(mine.values(seen_at=now))

    def end(self, session: Session, now: datetime, doer: Actor) -> None:
        """End a session; its cookie lets nobody in any more."""
        mine = sessions.c.id_sha256 == session.id_sha256
        with writing(self._engine) as connection:
            if connection.execute(delete(sessions).where(mine)).rowcount:
                audit_log.append(connection, doer.audit_action("session.end", doer.name), now)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
