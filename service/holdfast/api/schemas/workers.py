"""What travels over the API. The client reads these, too; nothing here knows how the service works.

Times are RFC 3339 in UTC. Money is integer micro-dollars; `simulated` says that nobody pays it.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from holdfast.api.schemas.base import Schema, WorkerSchema

MAX_SEQ: Final = 2**31 - 1
"""Largest number of an attempt or of an event of one job that the database can hold."""
MAX_COUNT: Final = 2**63 - 1
"""Largest number of a report or of an event of all jobs."""

INCARNATION: Final = r"^[0-9A-Za-z_-]{1,64}$"


class ReportIn(WorkerSchema):
    """One report of a worker."""

    n: int = Field(ge=1, le=MAX_COUNT)
    at: str
    kind: str
    body: dict[str, Any]


class ReportsIn(WorkerSchema):
    """Reports of one attempt, in order."""

    attempt: int = Field(ge=1, le=MAX_SEQ)
    reports: list[ReportIn] = Field(max_length=1000)
    incarnation: str | None = Field(
        default=None,
        pattern=INCARNATION,
        description="Who sends them, if it had to muster; null where the launcher numbers its placements.",
    )
    oldest: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="Number of the first report, where the worker no longer has the one that the service wants: "
        "the service continues there. Null while the worker has it.",
    )


class ReportsOut(Schema):
    """Where to go on."""

    next: int = Field(description="Number of the report that the service wants next.")
    leave_within_s: float | None = Field(
        description="Seconds in which the worker is to save its work and leave, as on a notice; null while it may stay."
    )


class RegistrationIn(WorkerSchema):
    """A worker that has to ask which attempt it is."""

    incarnation: str = Field(
        pattern=INCARNATION, description="A name of its own, drawn once for each placement."
    )


class RegistrationOut(Schema):
    """Which attempt it is."""

    attempt: int
    next: int = Field(description="Number of its next report.")
    before: int = Field(description="Reports of the attempt that others sent before its first.")
