"""The tables. `job_events` is the truth; `jobs` is a cache of its fold; the rest is mutable by nature.

Migrations in `migrations/versions` build the same tables; a test holds the two against each other.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Integer,
    String,
    Table,
    Text,
)

from holdfast.store.tables.base import UtcTime, metadata

ledgers = Table(
    "ledgers",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("seq", Integer, nullable=False, doc="Number of the last event that was reckoned with."),
    Column("version", Integer, nullable=False, doc="Which reckoning made it; see store.ledgers."),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False, doc="Empty where nobody said."),
    Column("project", Text, nullable=False),
    Column(
        "number", BigInteger, nullable=False, index=True, doc="Grows with each that is written."
    ),
)
"""Jobs that have ended and whose bill is kept in rows that can be added up. All of it can be reckoned anew."""

ledger_tags = Table(
    "ledger_tags",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("value", Text, nullable=False),
)

ledger_shares = Table(
    "ledger_shares",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False, doc="0: after the last one."),
    Column("zone", Text, primary_key=True, doc="Empty where nodes never came."),
    Column("day", String(10), primary_key=True, doc="In UTC, as 2026-03-01."),
    *(
        Column(name, BigInteger, nullable=False)
        for name in (
            *("waiting_ms", "setup_ms", "restore_ms", "useful_ms", "stalled_ms", "lost_ms"),
            *("node_ms", "setup_micros", "restore_micros", "useful_micros", "stalled_micros"),
            *("lost_micros", "adjusted_micros", "on_demand_micros"),
        )
    ),
    *(
        Column(name, BigInteger, nullable=False, server_default="0", doc="Nothing was reported.")
        for name in ("unmeasured_ms", "unmeasured_micros")
    ),
    Column("simulated", Integer, nullable=False, doc="1 where nobody pays it."),
    Column("is_price_estimate", Integer, nullable=False, doc="1 where nobody told a price in it."),
)
"""A bill in pieces: the fields of `domain.shares.Share`."""

ledger_placements = Table(
    "ledger_placements",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("zone", Text, nullable=False),
    Column("instance_type", Text, nullable=False, doc="Empty where nobody said."),
    Column("project", Text, nullable=False),
    Column("begin_ms", BigInteger, nullable=False, doc="Since 1970."),
    Column("end_ms", BigInteger, nullable=False, doc="Since 1970."),
    Column("minutes", Integer, nullable=False, doc="From the one to the other."),
    Column("end_hour", Integer, nullable=False, doc="Hour of the day in UTC, 0 to 23."),
    Column("cause", String(24), nullable=True, doc="NULL where the job ended with its nodes."),
    *(
        Column(name, BigInteger, nullable=True, doc="NULL where nobody knows, or it never was.")
        for name in ("detect_ms", "wait_ms", "setup_ms", "restore_ms", "redo_ms", "notice_ms")
    ),
    Column("is_noticed", Integer, nullable=False, doc="1 where its loss was announced."),
    Column("is_notice_used", Integer, nullable=False, doc="1 where work was saved in between."),
    *(
        Column(name, BigInteger, nullable=False)
        for name in ("lost_steps", "lost_ms", "lost_micros")
    ),
    Column("simulated", Integer, nullable=False, doc="1 where nobody pays its price."),
    Column("is_price_estimate", Integer, nullable=False, doc="1 where its price is an estimate."),
)
"""What became of each placement: the fields of `domain.chapters.Chapter`."""

ledger_hours = Table(
    "ledger_hours",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("zone", Text, primary_key=True),
    Column("hour", Integer, primary_key=True, autoincrement=False, doc="Hours since 1970, UTC."),
    Column("day_hour", Integer, nullable=False, doc="Hour of the day in UTC, 0 to 23."),
    Column("instance_type", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("node_ms", BigInteger, nullable=False, doc="Milliseconds of all nodes together."),
)
"""How long nodes stood, hour by hour: what the losses are held against."""

budgets = Table(
    "budgets",
    metadata,
    Column("scope", String(16), primary_key=True, doc="project or user."),
    Column("name", String(100), primary_key=True),
    Column("monthly_micros", BigInteger, nullable=False),
    Column("warn_at", JSON, nullable=False, doc="In percent, ascending."),
    Column("on_reached", String(16), nullable=False, doc="pause or warn."),
)

budget_warnings = Table(
    "budget_warnings",
    metadata,
    Column("scope", String(16), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("month", String(7), primary_key=True, doc="As in 2026-03, in UTC."),
    Column("percent", Integer, primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    Column("spent_micros", BigInteger, nullable=False),
)
