"""Schemas of metric series; shared with the client."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schemas.base import Schema


class BucketOut(Schema):
    """Consecutive points of one attempt, drawn as one."""

    attempt: int
    lost: bool = Field(description="Whether the work of these steps was lost and is repeated.")
    first_step: int
    last_step: int
    first_at: datetime
    last_at: datetime
    points: int = Field(description="Number of finite values.")
    not_finite: int = Field(description="Number of values that are not finite.")
    mean: float | None = Field(description="Of the finite values; null without any.")
    min: float | None
    max: float | None


class SeriesOut(Schema):
    """Metric series of a job."""

    name: str
    points: int = Field(
        description="Number of reported points, including those that are not finite."
    )
    last_step: int = Field(description="Newest step.")
    buckets: list[BucketOut] | None = Field(
        default=None,
        description="In order of steps or time, as requested; null if only names were.",
    )


class SeriesPage(Schema):
    """Metric series of one job."""

    x: str = Field(description="step or time.")
    series: list[SeriesOut] = Field(description="By name; existing ones only.")
