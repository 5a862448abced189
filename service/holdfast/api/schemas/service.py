"""Schemas of launchers, health and problems; shared with the client."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from holdfast.api.schemas.base import Schema


class UndecidedOut(Schema):
    """A launch whose nodes may be running although its engine lost the record.

    A person must decide.
    """

    launch: str
    job_id: str
    what: str = Field(description="What may still be running, and the remedy.")
    since: datetime | None = Field(description="When its engine first did not list it.")


class LauncherOut(Schema):
    """A launcher and the health of its engine."""

    engine: str
    configured: bool = Field(description="Whether this service uses it.")
    reachable: bool | None = Field(
        default=None,
        description="Whether its engine responded to the newest probe; null before the first one.",
    )
    version: str | None = Field(
        default=None,
        description="Version of its engine; null without an engine, or before its first response.",
    )
    guarantee: str | None = Field(
        default=None,
        description="exactly-once, or at-most-60s-overlap if its engine does not ask before a launch.",
    )
    waits_for_service: bool | None = Field(
        default=None,
        description="Whether its engine stops recovering and launching jobs while this service is down.",
    )
    clouds: list[str] | None = Field(
        default=None,
        description="Where its engine can rent nodes; null until reported, as in its first minute.",
    )
    clock_skew_s: float | None = Field(
        default=None, description="Lead of its engine's clock over the service's."
    )
    swept: bool | None = Field(
        default=None,
        description="Whether it was searched for `strangers` since the service started; null if it is not searchable.",
    )
    strangers: list[str] = Field(
        default_factory=list,
        description="What runs there for launches missing from the service's database; it is left running.",
    )
    strange_launches: list[str] = Field(
        default_factory=list, description="Keys of these launches, for stopping them."
    )
    undecided: list[UndecidedOut] = Field(
        default_factory=list,
        description="Launches whose records its engine lost; nothing is launched there until a person decides on each.",
    )
    trouble: str | None = Field(
        default=None, description="Why the newest probe failed; null if it succeeded."
    )
    since: datetime | None = Field(default=None, description="Start of the failure.")
    answered_at: datetime | None = Field(
        default=None, description="Last response of its engine; null before the first one."
    )
    reports_to: str | None = Field(default=None, description="Address to which its workers report.")
    users_share: str | None = Field(
        default=None,
        description="What jobs of different users share there; null if users' jobs are refused.",
    )


class HealthOut(Schema):
    """Health and version of the service."""

    status: str
    version: str
    revision: str | None = Field(
        default=None, description="Revision of the database; null if not checked."
    )


class FlawOut(Schema):
    """A mistake in a request."""

    pointer: str
    message: str


class Problem(BaseModel):
    """Problem details of an error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FlawOut] = Field(default_factory=list)
    request_id: str | None = None
