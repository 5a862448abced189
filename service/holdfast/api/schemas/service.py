"""What travels over the API. The client reads these, too; nothing here knows how the service works.

Times are RFC 3339 in UTC. Money is integer micro-dollars; `simulated` says that nobody pays it.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from holdfast.api.schemas.base import Schema


class UndecidedOut(Schema):
    """A launch whose nodes may run without a record at its engine, until a person decides."""

    launch: str
    job_id: str
    what: str = Field(description="What may still run, and what to do about it.")
    since: datetime | None = Field(description="When its engine first did not list it.")


class LauncherOut(Schema):
    """A launcher, and what is known of the engine behind it."""

    engine: str
    configured: bool = Field(description="Whether this service launches through it.")
    reachable: bool | None = Field(
        default=None,
        description="Whether its engine answered the newest probe; null before the first one.",
    )
    version: str | None = Field(
        default=None, description="Of its engine; null for one that has none, or was never heard."
    )
    guarantee: str | None = Field(
        default=None,
        description="exactly-once, or at-most-60s-overlap where its engine does not ask before it launches.",
    )
    waits_for_service: bool | None = Field(
        default=None,
        description="Whether its engine neither recovers jobs nor launches anything while this service is down.",
    )
    clouds: list[str] | None = Field(
        default=None,
        description="Where its engine can rent nodes; null while it has not said, as in its first minute.",
    )
    clock_skew_s: float | None = Field(
        default=None, description="How far its engine's clock is ahead of the service's."
    )
    swept: bool | None = Field(
        default=None,
        description="Whether it was searched for `strangers` since the service started; null for one that is not searched.",
    )
    strangers: list[str] = Field(
        default_factory=list,
        description="What runs there for launches that are not in the service's database; it is left alone.",
    )
    strange_launches: list[str] = Field(
        default_factory=list, description="Keys of these launches, by which they can be stopped."
    )
    undecided: list[UndecidedOut] = Field(
        default_factory=list,
        description="Launches of which its engine has lost its records; nothing is launched there until a person decides on each.",
    )
    trouble: str | None = Field(
        default=None, description="Why the newest probe found nothing out; null when it did."
    )
    since: datetime | None = Field(default=None, description="Since when there is trouble.")
    answered_at: datetime | None = Field(
        default=None, description="When its engine last answered; null for one that never did."
    )
    reports_to: str | None = Field(
        default=None, description="The address at which its workers are told to report."
    )
    users_share: str | None = Field(
        default=None,
        description="What jobs of different users share there; null where jobs of users are refused.",
    )


class HealthOut(Schema):
    """That the service answers, and which it is."""

    status: str
    version: str
    revision: str | None = Field(
        default=None, description="Of the database; null where it was not looked at."
    )


class FlawOut(Schema):
    """One mistake in what was sent."""

    pointer: str
    message: str


class Problem(BaseModel):
    """What went wrong: problem details of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FlawOut] = Field(default_factory=list)
    request_id: str | None = None
