"""Tokens that follow from the service's secret and are kept nowhere: those of workers, of SkyPilot's gate, of nudges.

A worker's token is derived, so that it can be made again for a new launch without being stored. Those of people are
random, and in `holdfast.store.identity.access_tokens`.
"""

from __future__ import annotations

import hmac

from sqlalchemy import Engine

from holdfast.store.identity.access_tokens import AccessTokens


class ServiceTokens:
    """What follows from the service's own secret."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        self._engine = engine
        self._secret = secret

    @property
    def access_tokens(self) -> AccessTokens:
        """The tokens of people."""
        return AccessTokens(self._engine, self._derived("people/mac/1").encode())

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
    return hmac.digest(secret, purpose.encode(), "sha256").hex()
