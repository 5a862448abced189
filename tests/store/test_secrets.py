"""Secrets are encrypted for their job, decrypted for it alone, and deleted at its end."""

from __future__ import annotations

import pytest
from holdfast.domain.events import CancelRequested
from holdfast.errors import IdempotencyMismatch, LaunchRefused
from holdfast.store.journal import Journal, SubmissionRequest
from holdfast.store.secrets import Secrets
from holdfast.store.tables.jobs import job_secrets
from sqlalchemy import Engine, select, update
from support.events import finished, submitted
from support.fakes import FixedClock

SECRETS = {"API_KEY": "hush-hush", "ACCESS_PIN": "0123-4567", "ODD_TEXT": "a'\"\\\n\u2028é"}
"""Each is long enough not to occur in a random ciphertext."""


@pytest.fixture
def secrets(engine: Engine) -> Secrets:
    return Secrets(engine, b"secret")


def rows(engine: Engine) -> dict[str, str]:
    """The stored secrets by job."""
    with engine.connect() as connection:
        return {row.job_id: row.sealed for row in connection.execute(select(job_secrets))}


def test_sealed_secrets_open_for_their_job(secrets: Secrets, journal: Journal) -> None:
    journal.submit("job-1", submitted(), sealed=secrets.encrypt("job-1", SECRETS))
    journal.submit("job-2", submitted(), sealed=secrets.encrypt("job-2", {}))

    assert secrets.open("job-1") == SECRETS
    assert secrets.open("job-2") == secrets.open("job-3") == {}


def test_stored_secrets_reveal_neither_names_nor_values(
    secrets: Secrets, journal: Journal, engine: Engine
) -> None:
    journal.submit("job-1", submitted(), sealed=secrets.encrypt("job-1", SECRETS))
    journal.submit("job-2", submitted(), sealed=secrets.encrypt("job-2", SECRETS))

    stored = rows(engine)

    assert stored["job-1"] != stored["job-2"]
    assert not [text for text in (*SECRETS, *SECRETS.values()) if text in str(stored)]
    assert "hush" not in str([item.event for item in journal.events("job-1")])


def test_secrets_are_stored_atomically_with_the_job(
    secrets: Secrets, journal: Journal, engine: Engine
) -> None:
    first = SubmissionRequest("key", secrets.digest(b"body", SECRETS))
    other = SubmissionRequest(
        "key", secrets.digest(b"body", {**SECRETS, "ACCESS_PIN": "0123-4568"})
    )
    journal.submit("job-1", submitted(), first, secrets.encrypt("job-1", SECRETS))

    again = journal.submit("job-2", submitted(), first, secrets.encrypt("job-2", SECRETS))
    with pytest.raises(IdempotencyMismatch):
        journal.submit("job-3", submitted(), other, secrets.encrypt("job-3", SECRETS))

    assert again.id == "job-1"
    assert rows(engine).keys() == {"job-1"}


def test_secrets_are_deleted_once_the_job_has_ended(
    secrets: Secrets, journal: Journal, engine: Engine
) -> None:
    for job_id in ("job-1", "job-2", "job-3"):
        journal.submit(job_id, submitted(), sealed=secrets.encrypt(job_id, SECRETS))
    journal.append(journal.read("job-1"), [finished(1)])
    journal.append(journal.read("job-2"), [CancelRequested(at=submitted().at, reason="x")])

    secrets.forget("job-3")
    secrets.forget("job-3")

    assert secrets.forget_ended() == 1
    assert secrets.forget_ended() == 0
    assert rows(engine).keys() == {"job-2"}


def test_wrong_service_secret_decrypts_nothing(
    secrets: Secrets, journal: Journal, engine: Engine
) -> None:
    journal.submit("job-1", submitted(), sealed=secrets.encrypt("job-1", SECRETS))

    with pytest.raises(LaunchRefused, match="encrypted with a different secret"):
        Secrets(engine, b"other").open("job-1")


def test_secrets_sealed_for_one_job_open_for_no_other(
    secrets: Secrets, journal: Journal, engine: Engine, clock: FixedClock
) -> None:
    journal.submit("job-1", submitted(), sealed=secrets.encrypt("job-1", SECRETS))
    journal.submit("job-2", submitted(), sealed=secrets.encrypt("job-2", {"KEY": "mine"}))
    with engine.begin() as connection:
        moved = update(job_secrets).where(job_secrets.c.job_id == "job-2")
        connection.execute(moved.values(sealed=rows(engine)["job-1"]))

    with pytest.raises(LaunchRefused, match="submit the job again"):
        secrets.open("job-2")


def test_request_digest_of_secrets_is_keyed_by_the_service(engine: Engine) -> None:
    one, other = Secrets(engine, b"one"), Secrets(engine, b"other")

    assert one.digest(b"body", {"PIN": "1"}) == one.digest(b"body", {"PIN": "1"})
    assert one.digest(b"body", {"PIN": "1"}) != one.digest(b"body", {"PIN": "2"})
    assert one.digest(b"body", {"PIN": "1"}) != other.digest(b"body", {"PIN": "1"})
    assert one.digest(b"body", {}) == other.digest(b"body", {})
