"""Table of sweeps.

Which jobs belong to a sweep is recorded in their events, and copied to `jobs.sweep`.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Index, Integer, String, Table, Text

from holdfast.store.tables.base import UtcTime, metadata

sweeps = Table(
    "sweeps",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("project", String(64), nullable=False),
    Column("owner", String(64), nullable=False, doc="Empty if unknown."),
    Column("created_at", UtcTime, nullable=False),
    Column("params", JSON, nullable=False, doc="Values by parameter."),
    Column("jobs", Integer, nullable=False, doc="Number of combinations."),
    Column("parallel", Integer, doc="Jobs that may have nodes at once; NULL: all."),
    Column("max_cost_micros", BigInteger, doc="NULL: no maximum."),
    Column("removed_micros", BigInteger, nullable=False, doc="Cost of its removed jobs."),
    Column("was_reached", Boolean, nullable=False, doc="Whether the maximum has paused jobs."),
    Column("stop_rule", JSON, doc="Fields of `StopRule`; NULL: no job is stopped early."),
    Column("idempotency_key", String(200), unique=True, doc="NULL without one."),
    Column("request_sha256", String(64), doc="Digest of the request with this key."),
)
Index("ix_sweeps_project_created_at", sweeps.c.project, sweeps.c.created_at)
