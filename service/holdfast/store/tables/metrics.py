"""Tables of metric series: blocks of points, summed up once."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Integer, String, Table

from holdfast.store.tables.base import metadata

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
