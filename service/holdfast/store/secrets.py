"""Seals: what may be stored of a secret, and opened by this service alone.

Secrets of jobs: sealed as they come in, opened for a launch alone, and forgotten once the job has ended.

Who has only the database, or only a backup of it, has nothing. Names are in the job's spec, where they may be seen.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from sqlalchemy import Connection, Engine, delete, insert, select

from holdfast.domain.events import Outcome
from holdfast.errors import LaunchRefused
from holdfast.store.database import reading, writing
from holdfast.store.tables.jobs import job_secrets, jobs


class SecretBox:
    """Fernet (AES-128-CBC with HMAC-SHA-256) under a key that is derived from the service's own secret for one purpose."""

    def __init__(self, secret: bytes, purpose: str, owner: str = "owner") -> None:
        """`owner` is the member of a sealed letter that says whose it is."""
        self._owner = owner
        key = hmac.new(secret, f"{purpose}/seal/1".encode(), hashlib.sha256).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._marking = hmac.new(secret, f"{purpose}/mark/1".encode(), hashlib.sha256).digest()

    def encrypt(self, owner: str, values: Mapping[str, Any]) -> str:
        """The values in a form that may be stored. A row that somebody moved to another owner opens nothing."""
        letter = json.dumps({self._owner: owner, "values": dict(values)})
        return self._fernet.encrypt(letter.encode()).decode()

    def decrypt(self, owner: str, sealed: str) -> dict[str, Any] | None:
        """The values; None if they were sealed under another secret, or for another owner."""
        try:
            letter = json.loads(self._fernet.decrypt(sealed.encode()))
        except InvalidToken:
            return None
        values: dict[str, Any] = letter["values"]
        return values if letter[self._owner] == owner else None

    def fingerprint(self, text: str) -> str:
        """The same 64 characters for the same text, which tell nothing about it to who has the database alone."""
        return hmac.new(self._marking, text.encode(), hashlib.sha256).hexdigest()


class Secrets:
    """The secrets of all jobs."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        self._engine = engine
        self._secret = secret
        self._secret_box = SecretBox(secret, "job-secrets", owner="job")

    def encrypt(self, job_id: str, values: Mapping[str, str]) -> str | None:
        """The values in a form that may be stored, for `Journal.submit`; None where there are none."""
        return self._secret_box.encrypt(job_id, values) if values else None

    def open(self, job_id: str) -> dict[str, str]:
        """The values by name; none where none were given, or where they were forgotten.

        Raises:
            LaunchRefused: they were sealed under another secret, and can never be opened here.
        """
        with reading(self._engine) as connection:
            query = select(job_secrets.c.sealed).where(job_secrets.c.job_id == job_id)
            sealed: str | None = connection.execute(query).scalar()
        if sealed is None:
            return {}
        values = self._secret_box.decrypt(job_id, sealed)
        if values is None:
            raise _unreadable(job_id)
        return values

    def forget(self, job_id: str) -> None:
        """Remove the values of a job; called once it has ended, and as often as one likes."""
        with writing(self._engine) as connection:
            connection.execute(delete(job_secrets).where(job_secrets.c.job_id == job_id))

    def forget_ended(self) -> int:
        """Remove the values of all jobs that have ended, as after a crash just before `forget`; how many jobs."""
        ended = select(jobs.c.id).where(jobs.c.status.in_([str(outcome) for outcome in Outcome]))
        with writing(self._engine) as connection:
            done = connection.execute(delete(job_secrets).where(job_secrets.c.job_id.in_(ended)))
            return done.rowcount

    def digest(self, request: bytes, values: Mapping[str, str]) -> str:
        """The identity of a request with these secrets, which tells nothing about them.

        A plain digest of a short secret could be guessed from a copy of the database; this one needs the key as well.
        """
        if not values:
            return hashlib.sha256(request).hexdigest()
        whole = request + b"\0" + json.dumps(dict(sorted(values.items()))).encode()
        return hmac.new(self._derived("job-secrets/digest/1"), whole, hashlib.sha256).hexdigest()

    def _derived(self, purpose: str) -> bytes:
        return hmac.new(self._secret, purpose.encode(), hashlib.sha256).digest()


def insert_secrets(connection: Connection, job_id: str, sealed: str) -> None:
    """Store what `seal` made, in the transaction that records the job."""
    connection.execute(insert(job_secrets).values(job_id=job_id, sealed=sealed))


def _unreadable(job_id: str) -> LaunchRefused:
    return LaunchRefused(
        f"the secrets of {job_id} were encrypted with a different secret than the one in this service's home directory; "
        "submit the job again"
    )
