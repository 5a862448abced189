"""Tables of the spot market: observations of places, and how long launches took to start.

Rows of jobs follow from `job_events` (`holdfast.store.market.projection`) and stay when a job is removed.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, String, Table, Text

from holdfast.store.tables.base import UtcTime, metadata

place_observations = Table(
    "place_observations",
    metadata,
    Column(
        "number",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        doc="Increases with each row written.",
    ),
    Column("place", Text, nullable=False, doc="As `PlaceObservation.place`."),
    Column("hardware", Text, nullable=False, doc="Empty if unknown."),
    Column("at", UtcTime, nullable=False),
    Column(
        "until", UtcTime, nullable=True, index=True, doc="As `PlaceObservation.until`; NULL: now."
    ),
    Column("is_available", Boolean, nullable=False),
    Column("job_id", String(32), nullable=False, index=True, doc="Empty if imported."),
    Column("node_group", Integer, nullable=True, doc="NULL for a moment, and if imported."),
    Column("source", Text, nullable=False, doc="`own`, or the name of an import."),
)
Index("ix_place_observations_source_place", *(place_observations.c[n] for n in ("source", "place")))

trace_imports = Table(
    "trace_imports",
    metadata,
    Column("name", Text, primary_key=True, doc="The source of its observations."),
    Column("sha256", String(64), nullable=False, unique=True, doc="Digest of what was imported."),
    Column("imported_at", UtcTime, nullable=False),
)

launch_starts = Table(
    "launch_starts",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("launch", Integer, primary_key=True, autoincrement=False),
    Column("engine", String(16), nullable=False),
    Column("capacity", String(16), nullable=True, doc="`spot` or `on_demand`; NULL: unknown."),
    Column("requested_at", UtcTime, nullable=False, index=True),
    Column(
        "is_denied", Boolean, nullable=False, doc="Whether nodes were denied before it had any."
    ),
    Column("ready_at", UtcTime, nullable=True, doc="Its first nodes; NULL: none yet."),
    Column("trained_at", UtcTime, nullable=True, doc="Its first training; NULL: none yet."),
)
