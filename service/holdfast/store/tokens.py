"""Access tokens: people's are random and kept as digests; a worker's follows from the service's secret and its job.

Random tokens of 256 bits need no slow hash: there is nothing to guess. A worker's token is derived, so that it can be
made again for a new launch without being stored anywhere.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import datetime

from sqlalchemy import Engine, insert, select

from holdfast.store.database import reading, writing
from holdfast.store.schema import tokens


class Tokens:
    """Who may come in."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        self._engine = engine
        self._secret = secret

    def make(self, name: str, now: datetime) -> str:
        """A new access token: the only time that it can be seen."""
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        row = {"id": token_id, "sha256": _digest(secret), "name": name, "created_at": now}
        with writing(self._engine) as connection:
            connection.execute(insert(tokens).values(**row))
        return f"hf_{token_id}_{secret}"

    def none_yet(self) -> bool:
        """True before the first token was made."""
        with reading(self._engine) as connection:
            return connection.execute(select(tokens.c.id).limit(1)).first() is None

    def is_user(self, token: str) -> bool:
        """Whether this is an access token that was made here."""
        head, _, rest = token.partition("_")
        token_id, _, secret = rest.partition("_")
        if head != "hf" or not secret:
            return False
        with reading(self._engine) as connection:
            digest = connection.execute(
                select(tokens.c.sha256).where(tokens.c.id == token_id)
            ).scalar()
        return hmac.compare_digest(digest or "", _digest(secret))

    def for_worker(self, job_id: str) -> str:
        """The token with which the workers of one job may report for it, and do nothing else."""
        return f"hfw_{job_id}_{self._derived(f'worker/{job_id}')}"

    @property
    def deployment(self) -> str:
        """A name for whoever shares this secret: one service, with all its replicas."""
        return self._derived("deployment")

    def for_gate(self) -> str:
        """The secret in the address at which SkyPilot asks whether a launch may pass."""
        return gate_secret(self._secret)

    def for_nudge(self, job_id: str) -> str:
        """The secret in the address at which somebody may say that there is news of a job."""
        return self._derived(f"nudge/{job_id}")[:32]

    def is_worker(self, token: str, job_id: str) -> bool:
        """Whether this is the token of that job's workers."""
        return hmac.compare_digest(token.encode(), self.for_worker(job_id).encode())

    def _derived(self, purpose: str) -> str:
        return _derived(self._secret, purpose)


def gate_secret(secret: bytes) -> str:
    """The secret in the gate's address, for whoever has the service's own secret and no database."""
    return _derived(secret, "gate")[:32]


def _derived(secret: bytes, purpose: str) -> str:
    return hmac.new(secret, purpose.encode(), hashlib.sha256).hexdigest()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
