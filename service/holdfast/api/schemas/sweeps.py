"""Schemas of sweeps; shared with the client."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field, StrictInt

from holdfast.api.schemas.base import Schema
from holdfast.api.schemas.jobs import Amount, TaskIn


class StopRuleIn(Schema):
    """The median rule: a job is stopped if it is worse than the others by the same step."""

    metric: str = Field(min_length=1, max_length=200, description="Name of the logged metric.")
    mode: Literal["min", "max"] = Field(default="min", description="Which values are better.")
    grace_steps: StrictInt = Field(
        default=0, ge=0, le=2**53, description="Steps before which no job is stopped."
    )


class StopRuleOut(Schema):
    """The median rule of a sweep."""

    metric: str
    mode: str
    grace_steps: int


class SweepIn(Schema):
    """A job file with several values of its parameters."""

    task: TaskIn = Field(description="As in POST /v1/jobs.")
    params: dict[str, list[str]] = Field(
        max_length=20,
        description="Values by variable; a value may be a range of integers, such as 1..8.",
    )
    parallel: StrictInt | None = Field(
        default=None, ge=1, le=10_000, description="Jobs that may have nodes at once; null: all."
    )
    max_cost_usd: Amount | None = Field(
        default=None, description="Maximum cost of all jobs together in US dollars."
    )
    stop: StopRuleIn | None = Field(default=None, description="Null: no job is stopped early.")


class SweepChangesIn(Schema):
    """Changes of a sweep; absent values stay."""

    parallel: StrictInt | None = Field(default=None, ge=1, le=10_000, description="Null: all.")
    max_cost_usd: Amount | None = Field(default=None, description="Null: no maximum.")


class TrialOut(Schema):
    """One job of a sweep."""

    job_id: str
    number: int = Field(description="Number of its combination, from 1.")
    params: dict[str, str]
    state: str
    detail: str
    step: int
    best: float | None = Field(
        description="Best value of the metric of the stop rule; null without one."
    )
    paid_micros: int
    is_stopped_early: bool = Field(
        default=False, description="Whether the stop rule has cancelled it."
    )


class SweepCurveOut(Schema):
    """A metric of one job of a sweep."""

    job_id: str
    low: float = Field(description="Lowest finite value.")
    high: float
    last: float | None = Field(description="Last of `values`.")
    values: list[float | None] = Field(
        description="Mean of the values since the previous one of `steps`; null without any."
    )


class SweepMetricsOut(Schema):
    """A metric of the jobs of a sweep, on common steps."""

    names: list[str] = Field(description="Metrics that its jobs log.")
    name: str | None = Field(description="The requested metric; null: only their names were.")
    steps: list[int]
    curves: list[SweepCurveOut] = Field(description="Of the jobs with a finite value.")


class SweepOut(Schema):
    """A sweep."""

    id: str
    name: str
    project: str
    owner: str | None
    created_at: datetime
    params: dict[str, list[str]]
    job_count: int = Field(description="Number of combinations.")
    states: dict[str, int] = Field(description="Number of jobs in each state.")
    parallel: int | None
    max_cost_usd: str | None
    stop: StopRuleOut | None


class SweepDetailOut(SweepOut):
    """A sweep with its jobs."""

    paid_micros: int = Field(description="Cost of all its jobs so far, including removed ones.")
    trials: list[TrialOut] = Field(description="In the order of their combinations.")
