"""Tables of jobs: events, folded state, reports, metrics, secrets and removals.

`job_events` is the only truth; `jobs` caches the folded state of each job. Migrations in
`migrations/versions` create the same tables, which a test compares.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from holdfast.store.tables.base import UtcTime, metadata
from holdfast.store.tables.billing import (
    ledger_hours,
    ledger_placements,
    ledger_shares,
    ledger_tags,
    ledgers,
)
from holdfast.store.tables.launches import musters

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("seq", Integer, nullable=False, doc="Number of the last event folded into `fold`."),
    Column("status", String(16), nullable=False, doc="State, or outcome once ended."),
    Column("submitted_at", UtcTime, nullable=False),
    Column("project", String(64), nullable=False, doc="Copy from `fold`, for lists."),
    Column("owner", String(64), nullable=False, doc="Copy from `fold`; empty if unknown."),
    Column(
        "fold",
        JSON,
        nullable=False,
        doc="Every field of `domain.jobs.job.Job`; can be rebuilt from job_events.",
    ),
    Column(
        "paid_seq",
        Integer,
        doc="`seq` when the columns below were computed; a different one: an older version has written the row since.",
    ),
    Column(
        "last_month",
        String(7),
        doc="Last month in which a job without nodes had nodes; NULL: it has nodes, or not computed.",
    ),
    Column("last_month_micros", BigInteger, doc="Its cost in that month."),
    Column(
        "meter_month",
        String(7),
        doc="With the next columns a `CostLine`; NULL: no nodes, several prices, or not computed.",
    ),
    Column("meter_micros", BigInteger),
    Column("meter_rest", Integer),
    Column("meter_micros_per_hour", BigInteger),
    Column("meter_since_ms", BigInteger),
    Column(
        "observed_seq",
        Integer,
        doc="Number of the last event of which the observations of places are stored; NULL: of none.",
    ),
    Column("name", Text, doc="Copy from `fold`; NULL: an older version has inserted the row."),
    Column("engine", String(16), doc="Launcher, as in `watches`; NULL like `name`."),
    Column("sweep", String(32), doc="Copy from `fold`; NULL without a sweep."),
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
# All columns that sums over jobs read: the rows of `jobs` are long, because they contain the fold.
for _payer in ("project", "owner"):
    Index(f"ix_jobs_{_payer}_paid", *(jobs.c[name] for name in (_payer, *_PAID)))
# All columns that lists filter by, so that neither a page nor its total reads other rows.
Index(
    "ix_jobs_list",
    *(
        jobs.c[name]
        for name in ("submitted_at", "id", "status", "project", "owner", "engine", "name")
    ),
)
Index("ix_jobs_project_submitted_at_id", jobs.c.project, jobs.c.submitted_at, jobs.c.id)
Index("ix_jobs_owner_submitted_at_id", jobs.c.owner, jobs.c.submitted_at, jobs.c.id)

Index("ix_jobs_sweep_status_id", jobs.c.sweep, jobs.c.status, jobs.c.id)

job_tags = Table(
    "job_tags",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
"""The tags of jobs, for lists; copied from `jobs.fold`."""
Index("ix_job_tags_name_job_id_value", job_tags.c.name, job_tags.c.job_id, job_tags.c.value)

removed_jobs = Table(
    "removed_jobs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("project", String(64), nullable=False),
    Column("owner", String(64), nullable=False),
    Column(
        "launches", Integer, nullable=False, doc="Number of its last launch; 0 without launches."
    ),
    Column("last_month", String(7), nullable=False, doc="As in `jobs`."),
    Column("last_month_micros", BigInteger, nullable=False, doc="As in `jobs`."),
    Column("removed_at", UtcTime, nullable=False),
    Column("place", Text, nullable=True, doc="Checkpoint store of the job; NULL without one."),
    Column(
        "with_checkpoints", Boolean, nullable=False, doc="Whether checkpoints are removed as well."
    ),
    Column(
        "trouble", Text, nullable=True, doc="Why the last attempt left files; NULL if it succeeded."
    ),
    Column("done_at", UtcTime, nullable=True, doc="NULL while rows or files remain."),
)
"""Removed jobs. Their rows in `ledgers` and `launches` stay, for sums and so that no launch becomes
unknown."""
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
        doc="Together with job_id, the only lock.",
    ),
    Column(
        "cursor",
        BigInteger,
        nullable=False,
        unique=True,
        doc="Order of commit over all jobs; the id of server-sent events.",
    ),
    Column("at", UtcTime, nullable=False, doc="When it happened."),
    Column("recorded_at", UtcTime, nullable=False, doc="When it was recorded."),
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
        doc="Number of its report.",
    ),
    Column("at", UtcTime, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column(
        "values", JSON, nullable=False, doc="Values by name; null for a value that is not finite."
    ),
)

report_marks = Table(
    "report_marks",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column(
        "n",
        BigInteger,
        nullable=False,
        doc="All reports up to this one are recorded, and none after it.",
    ),
)

watches = Table(
    "watches",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("engine", String(16), nullable=False, doc="The launcher that runs the job."),
    Column(
        "due_at",
        UtcTime,
        nullable=False,
        index=True,
        doc="Time of the next poll; the end of a replica's lease.",
    ),
    Column(
        "seen_at",
        UtcTime,
        nullable=True,
        doc="Start of the last successful observation; NULL before the first.",
    ),
    Column(
        "trouble", Text, nullable=True, doc="Why the last observation failed; NULL if it succeeded."
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
Index("ix_musters_job_id_incarnation", musters.c.job_id, musters.c.incarnation, unique=True)

job_secrets = Table(
    "job_secrets",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("sealed", Text, nullable=False, doc="Names and values; removed once the job has ended."),
)
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
# In the order of the sums and with all columns they need, so that they read the index once without
# sorting.
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
