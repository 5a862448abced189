"""Encryption of secrets: stored in the database, and decrypted only by this service.

Secrets of jobs are encrypted at submission, decrypted for a launch only, and removed once the job
has ended. The database or its backup alone reveals nothing. The names of secrets are visible in the
job's spec.
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
    """Encrypts values with a key derived from the service's secret for one purpose.

    It uses Fernet (AES-128-CBC with HMAC-SHA-256).
    """

    def __init__(self, secret: bytes, purpose: str, owner: str = "owner") -> None:
        """`owner` is the key of the encrypted object that names the owner of the values."""
        self._owner = owner
        key = hmac.new(secret, f"{purpose}/seal/1".encode(), hashlib.sha256).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._marking = hmac.new(secret, f"{purpose}/mark/1".encode(), hashlib.sha256).digest()

    def encrypt(self, owner: str, values: Mapping[str, Any]) -> str:
        """Encrypt values for an owner; a row moved to another owner cannot be decrypted."""
        content = json.dumps({self._owner: owner, "values": dict(values)})
        return self._fernet.encrypt(content.encode()).decode()

    def decrypt(self, owner: str, sealed: str) -> dict[str, Any] | None:
        """Decrypt values; None if they were encrypted with a different secret, or for another owner."""
        try:
            content = json.loads(self._fernet.decrypt(sealed.encode()))
        except InvalidToken:
            return None
        values: dict[str, Any] = content["values"]
        return values if content[self._owner] == owner else None

    def fingerprint(self, text: str) -> str:
        """64 characters, identical for identical texts, which reveal nothing without the key."""
        return hmac.new(self._marking, text.encode(), hashlib.sha256).hexdigest()


class Secrets:
    """The secrets of all jobs."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        self._engine = engine
        self._secret = secret
        self._secret_box = SecretBox(secret, "job-secrets", owner="job")

    def encrypt(self, job_id: str, values: Mapping[str, str]) -> str | None:
        """The encrypted values, for `Journal.submit`; None without values."""
        return self._secret_box.encrypt(job_id, values) if values else None

    def open(self, job_id: str) -> dict[str, str]:
        """The decrypted values by name; empty without values, or after their removal.

        Raises:
            LaunchRefused: they were encrypted with a different secret, and cannot be decrypted
                here.
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
        """Remove the values of a job that has ended; may be repeated."""
        with writing(self._engine) as connection:
            connection.execute(delete(job_secrets).where(job_secrets.c.job_id == job_id))

    def forget_ended(self) -> int:
        """Remove the values of all jobs that have ended, and return their number.

        Needed after a crash just before `forget`.
        """
        ended = select(jobs.c.id).where(jobs.c.status.in_([str(outcome) for outcome in Outcome]))
        with writing(self._engine) as connection:
            done = connection.execute(delete(job_secrets).where(job_secrets.c.job_id.in_(ended)))
            return done.rowcount

    def digest(self, request: bytes, values: Mapping[str, str]) -> str:
        """The identity of a request with these secrets, which reveals nothing about them.

        A plain digest of a short secret could be guessed from a copy of the database; this one
        needs the key as well.
        """
        if not values:
            return hashlib.sha256(request).hexdigest()
        whole = request + b"\0" + json.dumps(dict(sorted(values.items()))).encode()
        return hmac.new(self._derived("job-secrets/digest/1"), whole, hashlib.sha256).hexdigest()

    def _derived(self, purpose: str) -> bytes:
        return hmac.new(self._secret, purpose.encode(), hashlib.sha256).digest()


def insert_secrets(connection: Connection, job_id: str, sealed: str) -> None:
    """Store the result of `encrypt`, in the transaction that records the job."""
    connection.execute(insert(job_secrets).values(job_id=job_id, sealed=sealed))


def _unreadable(job_id: str) -> LaunchRefused:
    return LaunchRefused(
        f"the secrets of {job_id} were encrypted with a different secret than the one in this service's home directory; "
        "submit the job again"
    )
