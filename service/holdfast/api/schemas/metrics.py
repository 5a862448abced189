"""What travels over the API about curves. The client reads these, too."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schemas.base import Schema


class BucketOut(Schema):
    """Points of one attempt that follow each other, drawn as one."""

    attempt: int
    lost: bool = Field(
        description="Whether the work of these steps was lost: done again since, or to be done again."
    )
    first_step: int
    last_step: int
    first_at: datetime
    last_at: datetime
    points: int = Field(description="Those whose value is finite.")
    not_finite: int = Field(description="Those whose value is not.")
    mean: float | None = Field(description="Of the finite ones; null where there are none.")
    min: float | None
    max: float | None


class SeriesOut(Schema):
    """One series of what a job measured."""

    name: str
    points: int = Field(description="How many its workers told, with those that are not finite.")
    last_step: int = Field(description="Newest step of them.")
    buckets: list[BucketOut] | None = Field(
        default=None,
        description="In order of steps or time, as was asked for; null where only names were.",
    )


class SeriesPage(Schema):
    """Series of one job."""

    x: str = Field(description="step or time.")
    series: list[SeriesOut] = Field(description="By name; only those that there are.")
