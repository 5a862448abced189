"""Quotas, and the queue of jobs that wait for room in them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StrictBool, StrictFloat, StrictInt

from holdfast.api.schemas.base import Schema
from holdfast.domain.events.values import MAX_PRIORITY

MAX_QUOTA = 10_000_000
Amount = Annotated[StrictInt, Field(ge=0, le=MAX_QUOTA)]


class QuotaIn(Schema):
    """What the jobs of a user, project or service may hold at once; null: unlimited."""

    jobs: Amount | None = Field(default=None, description="Jobs.")
    nodes: Amount | None = Field(default=None, description="Nodes of all jobs.")
    gpus: Amount | None = Field(default=None, description="Accelerators of all nodes.")
    hourly_usd: StrictInt | StrictFloat | str | None = Field(
        default=None, description="US dollars per hour for all nodes, exact to a millionth."
    )
    may_pause_for_priority: StrictBool = Field(
        default=False,
        description="Only of projects: running spot jobs may be paused, with their work saved, for waiting ones of a higher priority.",
    )


class QuotaOut(Schema):
    """A quota with what is held of it."""

    scope: str = Field(description="service, project or user.")
    name: str = Field(description="Of the project or user; `all` for the service.")
    jobs: int | None = Field(description="Null: unlimited, as for the next three.")
    nodes: int | None
    gpus: int | None
    micros_per_hour: int | None
    may_pause_for_priority: bool = Field(description="As in the request; false except of projects.")
    held_jobs: int = Field(description="Admitted jobs that have neither ended nor been paused.")
    held_nodes: int
    held_gpus: int
    held_micros_per_hour: int
    waiting: int = Field(description="Jobs in the queue that this quota counts.")


class QueuePositionOut(Schema):
    """A job that waits in the queue."""

    position: int = Field(description="From 1, over all projects.")
    job_id: str
    name: str = Field(default="", description="Of the job.")
    project: str
    owner: str | None
    priority: int
    queued_at: datetime = Field(description="Since when it waits.")
    nodes: int
    gpus: int
    micros_per_hour: int
    is_admitted: bool = Field(description="Whether there is room for it, so that it starts soon.")
    is_urgent: bool = Field(
        description="Whether it has waited so long that priorities count no more."
    )
    reason: str = Field(description="What it waits for, and behind whom; empty if it is admitted.")
    shortage: str = Field(default="", description="`reason` without the jobs before it.")
    behind: list[str] = Field(
        description="The first jobs of its project before it that wait for the same quota."
    )
    before: int = Field(description="Number of all jobs before it that do.")
    never_fits: bool = Field(description="Whether it exceeds a quota even without other jobs.")


class OwnerUsageOut(Schema):
    """What counts of a user's past usage."""

    owner: str
    gpu_hours: float = Field(description="Accelerator hours, which count half after three days.")
    held_jobs: int = Field(
        default=0, description="Admitted jobs in the caller's projects, as for the next two."
    )
    held_nodes: int = 0
    held_gpus: int = 0
    waiting: int = Field(default=0, description="Jobs in this queue.")


class QueueOut(Schema):
    """The queue in its order."""

    jobs: list[QueuePositionOut]
    total: int = Field(default=0, description="Number of all jobs that wait in them.")
    usage: list[OwnerUsageOut] = Field(
        description="Of the users whose jobs wait or hold shares in the caller's projects, the least first."
    )


class PriorityIn(Schema):
    """A changed priority."""

    priority: Annotated[StrictInt, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = Field(
        description="Higher ones are admitted first."
    )
