"""Tables of quotas, of the queue, and of what users have used."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, String, Table

from holdfast.store.tables.base import UtcTime, metadata

quotas = Table(
    "quotas",
    metadata,
    Column("scope", String(16), primary_key=True),
    Column("name", String(100), primary_key=True, doc="`all` for the service."),
    Column("jobs", BigInteger, doc="NULL: unlimited, as in the next columns."),
    Column("nodes", BigInteger),
    Column("gpus", BigInteger),
    Column("micros_per_hour", BigInteger),
)

queue_entries = Table(
    "queue_entries",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("owner", String(64), nullable=False, doc="Empty if unknown."),
    Column("priority", Integer, nullable=False),
    Column("queued_at", UtcTime, nullable=False),
    Column("admitted_at", UtcTime, nullable=True, doc="NULL while the job waits."),
    Column("nodes", BigInteger, nullable=False),
    Column("gpus", BigInteger, nullable=False),
    Column("micros_per_hour", BigInteger, nullable=False),
)
"""Jobs that wait or hold a share, while quotas are set: a cache of their events."""
Index("ix_queue_entries_admitted_at", queue_entries.c.admitted_at)

owner_usage = Table(
    "owner_usage",
    metadata,
    Column("owner", String(64), primary_key=True),
    Column("gpu_hours", Float, nullable=False, doc="Of shares that are no longer held, decayed until `at`."),
    Column("at", UtcTime, nullable=False),
)  # fmt: skip
