"""Schemas of the GPUs of a job; shared with the client."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from holdfast.api.schemas.base import Schema


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
