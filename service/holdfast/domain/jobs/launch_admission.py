"""Admission tokens of launches at engines that do not deduplicate requests.

An engine such as SkyPilot starts another cluster for every request, including repeated ones. A launch therefore carries a
token that the engine's admission gate accepts once. The token is `issued` before the first request and then changes once:
to `consumed` by the request that passed the gate, or to `revoked` so that no request passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class TokenState(StrEnum):
    """State of a launch's admission token."""

    ISSUED = "issued"
    CONSUMED = "consumed"
    REVOKED = "revoked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """The service's record of one launch."""

    key: str
    job_id: str
    generation: int
    """Number of this launch's token, from 1."""
    state: TokenState
    state_at: datetime
    posted_at: datetime | None = None
    """Time of the last request to the engine; None before the first."""
    request_id: str | None = None
    """The engine's id of that request; None until it responds."""
    engine_id: int | None = None
    """The engine's number of the launch; None until known."""
    cancelled_at: datetime | None = None
    missing_since: datetime | None = None
    """Time of the first listing that lacked a launch which was listed before."""
    lost: str | None = None
    """Description of resources that may run without a record at the engine; None if there are none. Only a user's cancel resolves it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineEvent:
    """One entry of an engine's history of a launch."""

    at: datetime
    status: str
    code: str | None
    reason: str
