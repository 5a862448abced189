"""Schemas of worker registration and reports."""

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
    """A report of a worker."""

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
        description="The incarnation that sends them, if it had to register; null if the launcher numbers its placements.",
    )
    oldest: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="Number of the first report, if the worker no longer has the expected one: "
        "the service continues there. Null while the worker has it.",
    )


class ReportsOut(Schema):
    """Reply to reports: where to continue."""

    next: int = Field(description="Number of the next expected report.")
    leave_within_s: float | None = Field(
        description="Seconds in which the worker must save and exit, as on a notice; null if it may continue."
    )


class RegistrationIn(WorkerSchema):
    """Registration of a worker that does not know its attempt."""

    incarnation: str = Field(
        pattern=INCARNATION, description="Its incarnation: a random name, one for each placement."
    )


class RegistrationOut(Schema):
    """The attempt of a worker."""

    attempt: int
    next: int = Field(description="Number of its next report.")
    before: int = Field(
        description="Number of reports of the attempt that others sent before its first."
    )
