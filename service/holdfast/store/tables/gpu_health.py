"""Tables of the GPUs of jobs."""

from __future__ import annotations

from sqlalchemy import JSON, Column, Index, Integer, String, Table

from holdfast.store.tables.base import UtcTime, metadata

gpu_readings = Table(
    "gpu_readings",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("node", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False, doc="The newest one that reported the node."),
    Column("host", String(100), nullable=False),
    Column("at", UtcTime, nullable=False, doc="By the clock of the node."),
    Column("gpus", JSON, nullable=False, doc="`GpuReading.dump` of each GPU."),
)
"""The newest readings of each node of a job."""

unhealthy_gpus = Table(
    "unhealthy_gpus",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("node", Integer, primary_key=True, autoincrement=False),
    Column("gpu", Integer, primary_key=True, autoincrement=False),
    Column("engine", String(16), nullable=False, doc="Launcher of the job."),
    Column("host", String(100), nullable=False, doc="Empty if unknown."),
    Column("at", UtcTime, nullable=False, doc="When the service recorded the newest fault."),
)
"""GPUs with faults, which outlive their jobs until launches need not avoid them any more."""
Index("ix_unhealthy_gpus_at", unhealthy_gpus.c.at)
