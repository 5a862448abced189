"""Tokens derived from the service's secret: of workers, of SkyPilot's gate and of nudges.

They are not stored: a worker's token can be derived again for a new launch. The tokens of users are
random; `holdfast.store.identity.access_tokens` stores them.
"""

from __future__ import annotations

import hmac

from sqlalchemy import Engine

from holdfast.store.identity.access_tokens import AccessTokens


class ServiceTokens:
    """Derives tokens from the service's own secret."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        self._engine = engine
        self._secret = secret

    @property
    def access_tokens(self) -> AccessTokens:
        """The tokens of users."""
        return AccessTokens(self._engine, self._derived("people/mac/1").encode())

    def for_worker(self, job_id: str) -> str:
        """The token that permits the workers of one job to report for it, and nothing else."""
        return f"hfw_{job_id}_{self._derived(f'worker/{job_id}')}"

    @property
    def deployment(self) -> str:
        """A name of this service, common to all replicas with the same secret."""
        return self._derived("deployment")

    def for_gate(self) -> str:
        """The secret in the URL at which SkyPilot asks to admit a launch."""
        return gate_secret(self._secret)

    def for_nudge(self, job_id: str) -> str:
        """The secret in the URL that requests a poll of a job."""
        return self._derived(f"nudge/{job_id}")[:32]

    def is_worker(self, token: str, job_id: str) -> bool:
        """Whether a token is that of the job's workers."""
        return hmac.compare_digest(token.encode(), self.for_worker(job_id).encode())

    def _derived(self, purpose: str) -> str:
        return _derived(self._secret, purpose)


def gate_secret(secret: bytes) -> str:
    """The secret in the gate's URL, derived without a database."""
    return _derived(secret, "gate")[:32]


def _derived(secret: bytes, purpose: str) -> str:
    return hmac.digest(secret, purpose.encode(), "sha256").hex()
