"""Schemas of metric series and GPUs; shared with the client."""

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


class GpuOut(Schema):
    """The newest reading of a GPU; null where its driver reports nothing."""

    gpu: int = Field(description="Number of the GPU in its node, as nvidia-smi counts.")
    name: str = Field(description="Type of the GPU; empty if unknown.")
    uuid: str = Field(description="Id of the GPU; empty if unknown.")
    utilization: float | None = Field(description="Share of time in which it was busy, 0 to 1.")
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_c: int | None
    power_w: float | None
    power_limit_w: float | None
    clock_mhz: int | None = Field(description="Clock of the multiprocessors.")
    max_clock_mhz: int | None
    uncorrected_errors: int | None = Field(
        description="Uncorrected ECC errors since its driver was loaded."
    )
    throttles: list[str] = Field(
        description="Why its clocks are lowered: power_cap, heat, slowdown or power_brake."
    )
    xids: list[int] = Field(description="Different Xid errors in this attempt.")
    faults: list[str] = Field(description="Different faults in this attempt, by name.")
    detail: str = Field(description="The faults in words; empty without any.")


class NodeGpusOut(Schema):
    """The newest readings of the GPUs of a node."""

    node: int
    host: str = Field(description="Name of the machine.")
    at: datetime = Field(description="Time of the readings, by the clock of the node.")
    gpus: list[GpuOut]


class GpusOut(Schema):
    """The newest readings of the GPUs of a job."""

    attempt: int | None = Field(
        description="The newest attempt that reported any; null without one."
    )
    nodes: list[NodeGpusOut]
