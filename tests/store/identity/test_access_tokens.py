"""Access tokens: shown once, stored as a MAC, restricted, rotated, revoked and expired."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import TokenScope
from holdfast.errors import NotFound, NotPossibleNow
from holdfast.store.audit_log import AuditLog
from holdfast.store.identity.access_tokens import AccessTokens, NewToken
from holdfast.store.tables.identity import tokens as table
from sqlalchemy import Engine, insert, select
from support.events import DAWN

ADA = Actor(name="ada")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def keyring(engine: Engine) -> AccessTokens:
    return AccessTokens(engine, b"key")


def make(keyring: AccessTokens, **fields: object) -> tuple[str, str]:
    """The text and the id of a token of user ada."""
    text, token = keyring.create(NewToken(**{"name": "laptop", "user": "ada", **fields}), DAWN)
    return text, token.id


def test_a_token_is_found_by_its_text_alone(keyring: AccessTokens) -> None:
    before = keyring.is_empty()
    first, second = make(keyring), make(keyring)

    assert (before, keyring.is_empty()) == (True, False)
    for text, token_id in (first, second):
        found = keyring.find(text)
        assert found is not None
        assert (found.id, found.user, found.refusal(DAWN)) == (token_id, "ada", "")


def test_altered_token_is_not_found(keyring: AccessTokens) -> None:
    token, token_id = make(keyring)

    for other in ("", "_", "hf__", token[:-1], token + "x", f"hf_{token_id}_", f"hf_{token_id}", "hf_000000000000_x", token.replace("hf", "hx", 1), "hf_é_ü"):  # fmt: skip
        assert keyring.find(other) is None


def test_secret_and_its_digest_are_not_stored(keyring: AccessTokens, engine: Engine) -> None:
    """A copy of the database alone must not suffice to verify guesses."""
    secret = make(keyring)[0].split("_", 2)[2]

    with engine.connect() as connection:
        row = str(connection.execute(select(table)).all())

    assert secret not in row
    assert hashlib.sha256(secret.encode()).hexdigest() not in row


def test_changed_key_invalidates_tokens(keyring: AccessTokens, engine: Engine) -> None:
    text, _ = make(keyring)

    assert AccessTokens(engine, b"other").find(text) is None


def test_token_of_the_first_version_works_after_migration(
    keyring: AccessTokens, engine: Engine
) -> None:
    old = {"id": "old", "sha256": hashlib.sha256(b"hush").hexdigest(), "name": "first"}
    with engine.begin() as connection:
        connection.execute(insert(table).values(**old, scopes="read write admin", created_at=DAWN))
    before = keyring.find("hf_old_hush")

    keys = (keyring.ensure_pepper(), keyring.ensure_pepper())

    found = keyring.find("hf_old_hush")
    assert before is None
    assert keys == (1, 0)
    assert found is not None
    assert (found.user, found.scopes, found.expires_at) == (None, frozenset(TokenScope), None)
    with engine.connect() as connection:
        assert connection.execute(select(table.c.sha256)).scalar() is None


def test_token_expires_to_the_second(keyring: AccessTokens) -> None:
    text, _ = make(keyring, lifetime=DAY)

    token = keyring.find(text)
    assert token is not None
    assert not token.refusal(DAWN + DAY - timedelta(seconds=1))
    assert "expired" in token.refusal(DAWN + DAY)


def test_revoked_token_is_refused_and_audited(
    keyring: AccessTokens, engine: Engine, clock: object
) -> None:
    text, token_id = make(keyring)

    keyring.revoke(token_id, DAWN + HOUR, ADA)
    keyring.revoke(token_id, DAWN + 2 * HOUR, ADA)

    token = keyring.find(text)
    assert token is not None
    assert token.revoked_at == DAWN + HOUR
    assert "revoked" in token.refusal(DAWN + HOUR)
    (entry,) = AuditLog(engine, clock).page(limit=9)
    assert (entry.audit_action.action, entry.audit_action.target) == ("token.revoke", token_id)
    with pytest.raises(NotFound):
        keyring.revoke("nobody", DAWN, ADA)


def test_rotated_token_is_valid_for_another_day(keyring: AccessTokens) -> None:
    scopes = [TokenScope.READ]
    text, token_id = make(keyring, lifetime=30 * DAY, scopes=scopes, project="nlp")

    later = DAWN + DAY
    new_text, new = keyring.rotate(token_id, later, ADA)

    old = keyring.find(text)
    assert old is not None
    assert (old.replaced_by, old.expires_at) == (new.id, later + DAY)
    assert new_text != text
    assert (new.user, new.project, new.scopes) == ("ada", "nlp", frozenset(scopes))
    assert new.expires_at == later + 30 * DAY
    with pytest.raises(NotPossibleNow, match="before"):
        keyring.rotate(token_id, later, ADA)


def test_rotation_neither_extends_nor_revives_the_old_token(keyring: AccessTokens) -> None:
    _, short = make(keyring, lifetime=HOUR)
    _, dead = make(keyring, lifetime=HOUR)

    keyring.rotate(short, DAWN, ADA)

    assert keyring.get(short).expires_at == DAWN + HOUR
    with pytest.raises(NotPossibleNow, match="expired"):
        keyring.rotate(dead, DAWN + HOUR, ADA)


def test_the_last_use_is_noted_once_a_minute(keyring: AccessTokens) -> None:
    _, token_id = make(keyring)
    seen = []

    for seconds in (0, 30, 59, 60, 61):
        keyring.record_use(keyring.get(token_id), DAWN + timedelta(seconds=seconds))
        used_at = keyring.get(token_id).last_used_at
        assert used_at is not None
        seen.append((used_at - DAWN).total_seconds())

    assert seen == [0, 0, 0, 60, 60]
