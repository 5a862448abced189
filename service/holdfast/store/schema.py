"""The tables. `job_events` is the truth; `jobs` is a cache of its fold; the rest is mutable by nature.

Migrations in `migrations/versions` build the same tables; a test holds the two against each other.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.engine import Dialect


class UtcTime(TypeDecorator[datetime]):
    """An aware time in UTC, on databases with time zones and without."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """The time to be stored; a naive one is a bug of ours."""
        if value is None:
            return None
        assert value.tzinfo is not None, "a naive time has no place in the journal"
        return value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """The stored time, aware again where the database forgot its zone."""
        if value is None:
            return None
        time: datetime = value
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("seq", Integer, nullable=False, doc="Number of the last event folded into `fold`."),
    Column("status", String(16), nullable=False, doc="State, or outcome once ended."),
    Column("submitted_at", UtcTime, nullable=False),
    Column("project", String(64), nullable=False, doc="As in `fold`, for lists."),
    Column("owner", String(64), nullable=False, doc="As in `fold`; empty: nobody said."),
    Column(
        "fold",
        JSON,
        nullable=False,
        doc="Every field of `domain.job.Job`; can be rebuilt from job_events.",
    ),
    Column(
        "paid_seq",
        Integer,
        doc="`seq` when the columns below were computed; another one: an older version has written the row since.",
    ),
    Column(
        "last_month",
        String(7),
        doc="Last month in which a job without nodes had some; NULL: it has nodes, or not computed.",
    ),
    Column("last_month_micros", BigInteger, doc="What it paid in that month."),
    Column(
        "meter_month",
        String(7),
        doc="With the others: `domain.account.Line`; NULL: no nodes, unlike ones, or not computed.",
    ),
    Column("meter_micros", BigInteger),
    Column("meter_rest", Integer),
    Column("meter_micros_per_hour", BigInteger),
    Column("meter_since_ms", BigInteger),
)
_PAID: Final = (
    "last_month",
    "paid_seq",
    "seq",
    "last_month_micros",
    "meter_month",
    "meter_since_ms",
    "meter_micros",
    "meter_rest",
    "meter_micros_per_hour",
)
# All that sums over jobs read: their rows are long, as the fold is in them.
for _payer in ("project", "owner"):
    Index(f"ix_jobs_{_payer}_paid", *(jobs.c[name] for name in (_payer, *_PAID)))
Index("ix_jobs_submitted_at_id", jobs.c.submitted_at, jobs.c.id)
Index("ix_jobs_project_submitted_at_id", jobs.c.project, jobs.c.submitted_at, jobs.c.id)
Index("ix_jobs_owner_submitted_at_id", jobs.c.owner, jobs.c.submitted_at, jobs.c.id)

removed_jobs = Table(
    "removed_jobs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("launches", Integer, nullable=False, doc="Number of its last launch; 0 without any."),
    Column("last_month", String(7), nullable=False, doc="As in `jobs`."),
    Column("last_month_micros", BigInteger, nullable=False, doc="As in `jobs`."),
    Column("removed_at", UtcTime, nullable=False),
    Column("place", Text, nullable=True, doc="Checkpoint store of the job; NULL without one."),
    Column("with_checkpoints", Boolean, nullable=False, doc="Checkpoints are removed as well."),
    Column("trouble", Text, nullable=True, doc="Why the last try left files; NULL if none failed."),
    Column("done_at", UtcTime, nullable=True, doc="NULL while rows or files are left."),
)
"""Jobs that were removed. Their rows in `ledgers` and `launches` stay: for sums, and so that no launch becomes unknown."""
for _payer in ("project", "owner"):
    Index(
        f"ix_removed_jobs_{_payer}_last_month",
        *(removed_jobs.c[name] for name in (_payer, "last_month", "last_month_micros")),
    )

job_events = Table(
    "job_events",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column(
        "seq",
        Integer,
        primary_key=True,
        autoincrement=False,
        doc="With job_id the only lock there is.",
    ),
    Column(
        "cursor",
        BigInteger,
        nullable=False,
        unique=True,
        doc="Order of commit over all jobs; the SSE id.",
    ),
    Column("at", UtcTime, nullable=False, doc="When it happened."),
    Column("recorded_at", UtcTime, nullable=False, doc="When it was written here."),
    Column("source", String(16), nullable=False),
    Column("kind", String(48), nullable=False),
    Column("body", JSON, nullable=False),
)

metric_points = Table(
    "metric_points",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column(
        "n",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        doc="Number of the report that told it.",
    ),
    Column("at", UtcTime, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column(
        "values", JSON, nullable=False, doc="Numbers by name; a value that is not finite is null."
    ),
)

report_marks = Table(
    "report_marks",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column(
        "n", BigInteger, nullable=False, doc="Every report up to this one was taken, none after it."
    ),
)

watches = Table(
    "watches",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column(
        "engine", String(16), nullable=False, doc="Which launcher the job is looked at through."
    ),
    Column(
        "due_at",
        UtcTime,
        nullable=False,
        index=True,
        doc="Nobody need look before; a replica's lease ends here.",
    ),
    Column(
        "seen_at",
        UtcTime,
        nullable=True,
        doc="When the last look began that was answered; NULL before the first.",
    ),
    Column("trouble", Text, nullable=True, doc="Why the last look gave nothing; NULL when it did."),
)

upkeep = Table(
    "upkeep",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column(
        "due_at",
        UtcTime,
        nullable=True,
        index=True,
        doc="When its checkpoint store is tidied next; a replica's lease ends here. NULL: it was for the last time.",
    ),
    Column("tidied_at", UtcTime, nullable=True, doc="When that last came to its end; NULL before."),
    Column(
        "trouble", Text, nullable=True, doc="Why the last try came to nothing; NULL if it did not."
    ),
    Column(
        "since", UtcTime, nullable=True, doc="When the trouble was first met; NULL without any."
    ),
)

submissions = Table(
    "submissions",
    metadata,
    Column("idempotency_key", String(200), primary_key=True),
    Column("request_sha256", String(64), nullable=False),
    Column("job_id", String(32), nullable=False),
    Column("at", UtcTime, nullable=False),
)

launches = Table(
    "launches",
    metadata,
    Column("key", String(48), primary_key=True),
    Column("job_id", String(32), nullable=False, index=True),
    Column(
        "generation",
        Integer,
        nullable=False,
        doc="Which token of this launch is meant; a new one only once the old one can start nothing.",
    ),
    Column("state", String(16), nullable=False, doc="Of the token: issued, consumed or revoked."),
    Column("state_at", UtcTime, nullable=False),
    Column("posted_at", UtcTime, nullable=True, doc="Last time the engine was asked to launch."),
    Column(
        "request_id",
        String(64),
        nullable=True,
        doc="What the engine called that request; NULL while no answer came.",
    ),
    Column(
        "engine_id", BigInteger, nullable=True, doc="The engine's own number; NULL until known."
    ),
    Column("cancelled_at", UtcTime, nullable=True),
    Column(
        "missing_since",
        UtcTime,
        nullable=True,
        doc="First listing that lacked a launch which was there before; NULL while it is listed.",
    ),
    Column(
        "lost",
        Text,
        nullable=True,
        doc="What may still run without a record at the engine, in words; NULL where nothing may.",
    ),
)

launch_events = Table(
    "launch_events",
    metadata,
    Column("key", String(48), primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False, doc="Order of copying, from 1."),
    Column("at", UtcTime, nullable=False),
    Column("status", String(32), nullable=False),
    Column("code", Text, nullable=True),
    Column("reason", Text, nullable=False),
)

musters = Table(
    "musters",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column(
        "n",
        Integer,
        primary_key=True,
        autoincrement=False,
        doc="Order of arrival, from 1; the highest may speak for the job, the others are fenced. Below 1: has posted, never asked.",
    ),
    Column("incarnation", String(64), nullable=False),
    Column("asked_at", UtcTime, nullable=False),
    Column("attempt", Integer, nullable=True, doc="NULL until a look has told which one it is."),
    Column(
        "before",
        BigInteger,
        nullable=True,
        doc="Reports of that attempt that others sent before its first; NULL as attempt, and where nobody wrote it down.",
    ),
)
Index("ix_musters_job_id_incarnation", musters.c.job_id, musters.c.incarnation, unique=True)

job_secrets = Table(
    "job_secrets",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("sealed", Text, nullable=False, doc="Names and values; gone once the job has ended."),
)

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
Index("ix_ledger_shares_day", ledger_shares.c.day)
Index("ix_ledger_shares_zone", ledger_shares.c.zone)
Index("ix_ledgers_owner_job_id", ledgers.c.owner, ledgers.c.job_id)
Index("ix_ledgers_project_job_id", ledgers.c.project, ledgers.c.job_id)
Index(
    "ix_ledger_tags_name_value_job_id",
    ledger_tags.c.name,
    ledger_tags.c.value,
    ledger_tags.c.job_id,
)
Index("ix_jobs_status_id_seq", jobs.c.status, jobs.c.id, jobs.c.seq)

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
# In the order of the sums, and with all that they need: so they are read once, and sorted never.
Index(
    "ix_ledger_hours_sums",
    *(ledger_hours.c[name] for name in ("zone", "day_hour", "instance_type", "hour", "project")),
    ledger_hours.c.node_ms,
)
Index(
    "ix_ledger_placements_sums",
    *(ledger_placements.c[name] for name in ("zone", "end_hour", "instance_type", "cause")),
)
Index(
    "ix_ledger_placements_minutes",
    *(ledger_placements.c[name] for name in ("minutes", "cause", "end_ms", "zone")),
    *(ledger_placements.c[name] for name in ("instance_type", "project")),
)

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
