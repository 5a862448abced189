"""Access tokens of users: random, stored as an HMAC under a key outside the database.

`hf_<id>_<secret>` has 256 random bits, so that a slow hash would add no protection: the secret
cannot be guessed. It would cost 200 ms instead of 2 us for each request, and allow denial of
service. The stored value is HMAC-SHA-256(key, SHA-256(secret)): a copy of the database alone is
worthless, and the digests SHA-256(secret) of the first version can be converted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Engine, insert, or_, select, update

from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import ROTATION_GRACE, TokenScope
from holdfast.errors import NotFound, NotPossibleNow
from holdfast.store import audit_log
from holdfast.store.database import reading, writing
from holdfast.store.tables.identity import tokens

USE_RECORDED_EVERY: Final = timedelta(minutes=1)
"""Precision of the last use. A lower value adds writes; a higher value recognises unused tokens
later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A stored access token."""

    id: str
    name: str
    user: str | None
    """None: the owner of the service."""
    project: str | None
    """The only project it is valid for; None: all projects of its user."""
    scopes: frozenset[TokenScope]
    created_at: datetime
    expires_at: datetime | None
    """None: never."""
    last_used_at: datetime | None = None
    """To the minute; None: never."""
    revoked_at: datetime | None = None
    replaced_by: str | None = None
    """The token that replaced it at a rotation."""
    parent: str | None = None
    """The token that created it, with which it ends; None: none, or not recorded."""

    def refusal(self, now: datetime) -> str:
        """Why the token is no longer valid, as the end of a sentence; empty if it is valid."""
        if self.revoked_at:
            return f"was revoked on {self.revoked_at:%Y-%m-%d at %H:%M}Z"
        if self.expires_at and self.expires_at <= now:
            return f"expired on {self.expires_at:%Y-%m-%d at %H:%M}Z"
        return ""

    @property
    def audit_fields(self) -> dict[str, Any]:
        """The fields of the token that the audit log records."""
        return {
            "name": self.name,
            "user": self.user,
            "project": self.project,
            "scopes": sorted(self.scopes),
            "expires_at": self.expires_at.isoformat() if self.expires_at else None,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class NewToken:
    """The properties of a token to be created."""

    name: str
    user: str | None = None
    project: str | None = None
    scopes: Collection[TokenScope] = tuple(TokenScope)
    lifetime: timedelta | None = None
    """None: unlimited, as the owner's own."""
    parent: str | None = None
    """The token of the caller, which the new one does not outlive; None: the caller has none."""


class AccessTokens:
    """The access tokens of all users."""

    def __init__(self, engine: Engine, key: bytes) -> None:
        self._engine = engine
        self._key = key

    def create(
        self, request: NewToken, now: datetime, actor: Actor | None = None
    ) -> tuple[str, Token]:
        """Create a token; return its text, which cannot be displayed again, and the stored token."""
        with writing(self._engine) as connection:
            text, token = self.insert(connection, request, now)
            if actor:
                action = actor.audit_action("token.add", token.id, after=token.audit_fields)
                audit_log.append(connection, action, now)
        return text, token

    def ensure_first(self, now: datetime, actor: Actor) -> tuple[str | None, bool]:
        """Return the owner's first token, derived from the key, and whether this call created it.

        All replicas derive the same one. If it is no longer valid, the next one is derived, unless the
        owner has another valid token; then there is no first one.
        """
        with writing(self._engine) as connection:
            mine = select(tokens).where(tokens.c.user.is_(None))
            owned = [_token(row) for row in connection.execute(mine).mappings()]
            has_other = any(not token.refusal(now) for token in owned)
            for number in itertools.count():
                token_id, secret = self._derive(number)
                text = f"hf_{token_id}_{secret}"
                found = _row(connection, token_id)
                if found is None:
                    if number and has_other:
                        return None, False
                    self.insert(connection, NewToken(name="first"), now, (token_id, secret))
                    after = _token(_require_token(connection, token_id)).audit_fields
                    action = actor.audit_action("token.add", token_id, after=after)
                    audit_log.append(connection, action, now)
                    return text, True
                if not _token(found).refusal(now):
                    return text, False
        raise AssertionError("counting does not end")

    def is_empty(self) -> bool:
        """Whether no token was ever created."""
        with reading(self._engine) as connection:
            return connection.execute(select(tokens.c.id).limit(1)).first() is None

    def ensure_pepper(self) -> int:
        """Convert digests of the first version to MACs; return their number."""
        old = select(tokens.c.id, tokens.c.sha256).where(tokens.c.mac.is_(None))
        with writing(self._engine) as connection:
            rows = connection.execute(old).all()
            for row in rows:
                mine = update(tokens).where(tokens.c.id == row.id)
                connection.execute(mine.values(mac=self._mac(row.sha256), sha256=None))
        return len(rows)

    def find(self, text: str) -> Token | None:
        """The token with a text, valid or not; None if this service did not create it."""
        head, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        if head != "hf" or not secret:
            return None
        with reading(self._engine) as connection:
            row = _row(connection, token_id)
        mac = row["mac"] if row else None
        # Compared even without such a row, so that the duration does not reveal whether an id
        # exists.
        same = hmac.compare_digest(mac or "", self._mac(_digest(secret)))
        return _token(row) if same else None

    def get(self, token_id: str) -> Token:
        """A stored token.

        Raises:
            NotFound: the token does not exist.
        """
        with reading(self._engine) as connection:
            return _token(_require_token(connection, token_id))

    def list_tokens(self, user: str | None, *, of_all: bool = False) -> list[Token]:
        """The tokens of a user (None: of the owner), or of all users; newest first."""
        query = select(tokens).order_by(tokens.c.created_at.desc(), tokens.c.id)
        if not of_all:
            query = query.where(tokens.c.user.is_not_distinct_from(user))
        with reading(self._engine) as connection:
            return [_token(row) for row in connection.execute(query).mappings()]

    def record_use(self, token: Token, now: datetime) -> None:
        """Record the use of a token, at most once a minute."""
        if token.last_used_at and now - token.last_used_at < USE_RECORDED_EVERY:
            return
        is_due = or_(
            tokens.c.last_used_at.is_(None), tokens.c.last_used_at <= now - USE_RECORDED_EVERY
        )
        with writing(self._engine) as connection:
            mine = update(tokens).where(tokens.c.id == token.id, is_due)
            connection.execute(mine.values(last_used_at=now))

    def revoke(self, token_id: str, now: datetime, actor: Actor) -> Token:
        """Revoke a token and those created with it, and return it.

        Raises:
            NotFound: the token does not exist.
        """
        with writing(self._engine) as connection:
            if _require_token(connection, token_id)["revoked_at"] is None:
                for revoked in _revoke(connection, tokens.c.id == token_id, now):
                    action = actor.audit_action(
                        "token.revoke", revoked.id, before=revoked.audit_fields
                    )
                    audit_log.append(connection, action, now)
        return self.get(token_id)

    def rotate(
        self, token_id: str, now: datetime, actor: Actor, grace: timedelta = ROTATION_GRACE
    ) -> tuple[str, Token]:
        """Replace a token by a new one with the same properties and lifetime.

        The old one stays valid for `grace` only.

        Raises:
            NotFound: the token does not exist.
            NotPossibleNow: it was rotated before, or is no longer valid.
        """
        with writing(self._engine) as connection:
            old = _token(_require_token(connection, token_id))
            if old.replaced_by:
                raise NotPossibleNow(f"token {token_id} was rotated to {old.replaced_by} before")
            if reason := old.refusal(now):
                raise NotPossibleNow(
                    f"token {token_id} {reason}; create another: holdfast tokens add"
                )
            lasts = old.expires_at - old.created_at if old.expires_at else None
            request = NewToken(
                name=old.name,
                user=old.user,
                project=old.project,
                scopes=old.scopes,
                lifetime=lasts,
                parent=old.parent if actor.token_id in {None, old.id} else actor.token_id,
            )
            text, new = self.insert(connection, request, now)
            ends_at = min(filter(None, (old.expires_at, now + grace)))
            change = {"replaced_by": new.id, "expires_at": ends_at}
            connection.execute(update(tokens).where(tokens.c.id == token_id).values(**change))
            mine = update(tokens).where(tokens.c.parent == token_id)
            connection.execute(mine.values(parent=new.id))
            after = {**new.audit_fields, "old_ends_at": ends_at.isoformat()}
            action = actor.audit_action(
                "token.rotate", token_id, before=old.audit_fields, after={"id": new.id, **after}
            )
            audit_log.append(connection, action, now)
        return text, new

    def insert(
        self,
        connection: Connection,
        request: NewToken,
        now: datetime,
        content: tuple[str, str] | None = None,
    ) -> tuple[str, Token]:
        """Insert a token with a random id and secret, or those of `content`, without an audit entry."""
        token_id, secret = content or (secrets.token_hex(6), secrets.token_urlsafe(32))
        parent = _row(connection, request.parent) if request.parent else None
        ends = [
            now + request.lifetime if request.lifetime else None,
            parent["expires_at"] if parent else None,
        ]
        row = {
            "id": token_id,
            "mac": self._mac(_digest(secret)),
            "name": request.name,
            "user": request.user,
            "project": request.project,
            "scopes": " ".join(scope for scope in TokenScope if scope in request.scopes),
            "created_at": now,
            "expires_at": min(filter(None, ends), default=None),
            "parent": request.parent,
        }
        connection.execute(insert(tokens).values(**row))
        kept = _row(connection, token_id)
        assert kept, "the row was inserted above"
        return f"hf_{token_id}_{secret}", _token(kept)

    def _derive(self, number: int) -> tuple[str, str]:
        """Return the id and the secret of a first token; they cannot be computed without the key."""
        purposes = (f"first-token/{number}/{part}/1".encode() for part in ("id", "secret"))
        name, secret = (hmac.new(self._key, one, hashlib.sha256).digest() for one in purposes)
        return name.hex()[:12], base64.urlsafe_b64encode(secret).decode().rstrip("=")

    def _mac(self, digest: str) -> str:
        return hmac.new(self._key, digest.encode(), hashlib.sha256).hexdigest()


def revoke_all(connection: Connection, user: str, now: datetime) -> int:
    """Revoke the tokens of a user and those created with them; return how many were valid."""
    return len(_revoke(connection, tokens.c.user == user, now))


def _revoke(connection: Connection, which: ColumnElement[bool], now: datetime) -> list[Token]:
    """Revoke tokens and all created with them, and return those that were valid.

    A thief may have created tokens with a stolen one.
    """
    revoked: list[Token] = []
    while True:
        rows = connection.execute(select(tokens).where(which)).mappings().all()
        good = [_token(row) for row in rows if row["revoked_at"] is None]
        ids = [token.id for token in good]
        connection.execute(update(tokens).where(tokens.c.id.in_(ids)).values(revoked_at=now))
        revoked += good
        if not rows:
            return revoked
        which = tokens.c.parent.in_([row["id"] for row in rows])


def _row(connection: Connection, token_id: str) -> Any:
    return connection.execute(select(tokens).where(tokens.c.id == token_id)).mappings().first()


def _require_token(connection: Connection, token_id: str) -> Any:
    row = _row(connection, token_id)
    if row is None:
        raise NotFound(f"there is no token {token_id}")
    return row


def _token(row: Any) -> Token:
    kept = {key: row[key] for key in row if key not in {"sha256", "mac", "scopes"}}
    return Token(**kept, scopes=frozenset(TokenScope(word) for word in row["scopes"].split()))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
