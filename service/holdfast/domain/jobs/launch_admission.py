"""What is remembered of a launch at an engine that has no memory of its own for it.

An engine such as SkyPilot starts one more cluster for every request that reaches it, whoever sent it twice. So a
launch carries a token that the engine's admission gate lets pass once. The token is `issued` before the first
request, and leaves that state for good in one of two ways: `consumed` by the request that passed the gate, or
`revoked` by whoever wants that none ever passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class TokenState(StrEnum):
    """Where the token of a launch is."""

    ISSUED = "issued"
    CONSUMED = "consumed"
    REVOKED = "revoked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """One launch, as far as it is known on this side."""

    key: str
    job_id: str
    generation: int
    """Which token of this launch is meant, from 1."""
    state: TokenState
    state_at: datetime
    posted_at: datetime | None = None
    """Last time the engine was asked; None before the first."""
    request_id: str | None = None
    """What the engine calls that request; None while no answer came."""
    engine_id: int | None = None
    """The engine's own number of the launch; None until it is known."""
    cancelled_at: datetime | None = None
    missing_since: datetime | None = None
    """First listing that lacked a launch which was there before."""
    lost: str | None = None
    """What may still run without a record at the engine, in words; None where nothing may. A cancel is a person's decision on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineEvent:
    """One line of an engine's own history of a launch."""

    at: datetime
    status: str
    code: str | None
    reason: str
