"""Tables of rollups over closed jobs, of budgets and quotas, and of the queue."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    String,
    Table,
    Text,
    text,
)

from holdfast.store.tables.base import UtcTime, metadata

ledgers = Table(
    "ledgers",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("seq", Integer, nullable=False, doc="Number of the last event included."),
    Column(
        "version",
        Integer,
        nullable=False,
        doc="`ROLLUP_VERSION` that computed it; see store.billing.bills.",
    ),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False, doc="Empty if unknown."),
    Column("project", Text, nullable=False),
    Column(
        "number", BigInteger, nullable=False, index=True, doc="Increases with each row written."
    ),
    Column(
        "charged_by",
        String(64),
        nullable=False,
        server_default=text("''"),
        doc="The prices of its charges; see store.billing.bills. Empty if they have to be computed again.",
    ),
    *(
        Column(name, BigInteger, nullable=False, server_default="0")
        for name in ("kept_since_ms", "kept_bytes", "kept_rest")
    ),
    Column("kept_unit_micros", BigInteger, doc="NULL if no price is known."),
)
"""Closed jobs whose bill is in rows that the database can sum up. All of it can be computed again.

`kept_*` are the checkpoints that cost on after the rows: the fields of `domain.charges.charge_shares.KeptStorage`. `kept_bytes` is 0
if nothing costs on.
"""

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
    Column(
        "attempt", Integer, primary_key=True, autoincrement=False, doc="0: after the last attempt."
    ),
    Column("zone", Text, primary_key=True, doc="Empty without nodes."),
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
        Column(name, BigInteger, nullable=False, server_default="0", doc="Phases without reports.")
        for name in ("unmeasured_ms", "unmeasured_micros")
    ),
    Column("simulated", Integer, nullable=False, doc="1 if simulated prices are included."),
    Column("is_price_estimate", Integer, nullable=False, doc="1 if a price in it is an estimate."),
    *(
        Column(name, BigInteger, nullable=False, server_default="0", doc="Beside the nodes.")
        for name in ("storage_micros", "requests_micros", "egress_micros", "disks_micros")
    ),
    Column(
        "has_unpriced",
        Integer,
        nullable=False,
        server_default="0",
        doc="1 if something beside the nodes has no known price.",
    ),
    Column(
        "has_nodes", Integer, nullable=False, server_default="1", doc="0: only beside the nodes."
    ),
)
"""The bill by attempt, zone and day: the fields of `domain.billing.allocation.CostAllocation`, and charges."""

ledger_placements = Table(
    "ledger_placements",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column(
        "part",
        Integer,
        primary_key=True,
        autoincrement=False,
        server_default="0",
        doc="0: the end of the placement; from 1: losses of single nodes before it.",
    ),
    Column("node", Integer, nullable=True, doc="The lost node; NULL if all ended at once."),
    Column(
        "node_group",
        Text,
        nullable=False,
        server_default=text("''"),
        doc="Name of its node group; empty for a job without groups.",
    ),
    Column("zone", Text, nullable=False),
    Column("instance_type", Text, nullable=False, doc="Empty if unknown."),
    Column("project", Text, nullable=False),
    Column("begin_ms", BigInteger, nullable=False, doc="Since 1970."),
    Column("end_ms", BigInteger, nullable=False, doc="Since 1970."),
    Column("minutes", Integer, nullable=False, doc="Minutes between them."),
    Column("end_hour", Integer, nullable=False, doc="Hour of the day in UTC, 0 to 23."),
    Column("cause", String(24), nullable=True, doc="NULL if the placement ended with the job."),
    *(
        Column(name, BigInteger, nullable=True, doc="NULL if unknown or not applicable.")
        for name in ("detect_ms", "wait_ms", "setup_ms", "restore_ms", "redo_ms", "notice_ms")
    ),
    Column("is_noticed", Integer, nullable=False, doc="1 if there was a termination notice."),
    Column(
        "is_notice_used",
        Integer,
        nullable=False,
        doc="1 if a checkpoint was committed after the notice.",
    ),
    *(
        Column(name, BigInteger, nullable=False)
        for name in ("lost_steps", "lost_ms", "lost_micros")
    ),
    Column("simulated", Integer, nullable=False, doc="1 if its price is simulated."),
    Column("is_price_estimate", Integer, nullable=False, doc="1 if its price is an estimate."),
)
"""One row per placement and loss of a single node: `domain.preemptions.placements.PlacementRecord`."""

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
    Column("node_ms", BigInteger, nullable=False, doc="Node milliseconds."),
)
"""Node time by hour, the denominator of preemption rates."""

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

quotas = Table(
    "quotas",
    metadata,
    Column("scope", String(16), primary_key=True),
    Column("name", String(100), primary_key=True, doc="`all` for the service."),
    Column("jobs", BigInteger, doc="NULL: unlimited, as in the next columns."),
    Column("nodes", BigInteger),
    Column("gpus", BigInteger),
    Column("micros_per_hour", BigInteger),
    Column("may_pause_for_priority", Boolean, doc="Only of projects; NULL: no."),
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
    Column("paused_for", String(32), doc="The waiting job for which it is pausing; NULL: none."),
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
