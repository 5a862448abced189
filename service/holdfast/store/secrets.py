"""Secrets of jobs: sealed as they come in, opened for a launch alone, and forgotten once the job has ended.

Who has only the database, or only a backup of it, has nothing. Names are in the job's spec, where they may be seen.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping

from sqlalchemy import Connection, Engine, delete, insert, select

from holdfast.domain.events import Outcome
from holdfast.errors import LaunchRefused
from holdfast.store.database import reading, writing
from holdfast.store.schema import job_secrets, jobs
from holdfast.store.seals import Seal


class Secrets:
    """The secrets of all jobs."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        self._engine = engine
        self._secret = secret
        self._seal = Seal(secret, "job-secrets", owner="job")

    def seal(self, job_id: str, values: Mapping[str, str]) -> str | None:
        """The values in a form that may be stored, for `Journal.submit`; None where there are none."""
        return self._seal.close(job_id, values) if values else None

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
        values = self._seal.open(job_id, sealed)
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


def put(connection: Connection, job_id: str, sealed: str) -> None:
    """Store what `seal` made, in the transaction that records the job."""
    connection.execute(insert(job_secrets).values(job_id=job_id, sealed=sealed))


def _unreadable(job_id: str) -> LaunchRefused:
    return LaunchRefused(
        f"the secrets of {job_id} were sealed under another secret than the one in this service's home folder; "
        "submit the job again"
    )
