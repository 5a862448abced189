"""Tables of metric series, in blocks of points that are summed up once, and of GPUs."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Double, Index, Integer, String, Table

from holdfast.store.tables.base import UtcTime, metadata

MAX_NAME_CHARS = 200
"""Characters in the name of a series. A higher value exceeds what a PostgreSQL index can hold."""

metric_blocks = Table(
    "metric_blocks",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("name", String(MAX_NAME_CHARS), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column(
        "block",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        doc="Reports 64 x block + 1 to 64 x block + 64 of the attempt; see store.metric_blocks.",
    ),
    Column("points", Integer, nullable=False, doc="Points with a finite value."),
    Column("not_finite", Integer, nullable=False),
    *(
        Column(name, Double, nullable=True, doc="NULL without a finite value.")
        for name in ("mean", "low", "high")
    ),
    *(
        Column(name, BigInteger, nullable=False)
        for name in ("first_step", "last_step", "first_ms", "last_ms")
    ),
)
"""The fields of `domain.metric_series.SeriesSegment`, computed from `metric_points`; all of it can
be computed again."""

metric_block_marks = Table(
    "metric_block_marks",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column(
        "n", BigInteger, nullable=False, doc="Points of all reports up to this one are in blocks."
    ),
)

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
