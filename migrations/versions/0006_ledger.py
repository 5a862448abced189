"""Bills and histories of jobs that have ended, in rows that can be added up.

They are a cache: nothing is written here, and the service reckons them from the journal once it runs.

Revision: 0006
Follows: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_AMOUNTS = (
    *("waiting_ms", "setup_ms", "restore_ms", "useful_ms", "stalled_ms", "lost_ms", "node_ms"),
    *("setup_micros", "restore_micros", "useful_micros", "stalled_micros", "lost_micros"),
    *("adjusted_micros", "on_demand_micros"),
)
_SPANS = ("detect_ms", "wait_ms", "setup_ms", "restore_ms", "redo_ms", "notice_ms")
TABLES = ("ledgers", "ledger_tags", "ledger_shares", "ledger_placements", "ledger_hours")


def upgrade() -> None:
    op.create_table(
        "ledgers",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_ledgers"),
    )
    op.create_table(
        "ledger_tags",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_ledger_tags"),
    )
    op.create_table(
        "ledger_shares",
        *_placed(),
        sa.Column("day", sa.String(10), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _AMOUNTS),
        sa.Column("simulated", sa.Integer(), nullable=False),
        sa.Column("is_price_estimate", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "zone", "day", name="pk_ledger_shares"),
    )
    op.create_index("ix_ledger_shares_day", "ledger_shares", ["day"])
    op.create_index("ix_ledger_shares_zone", "ledger_shares", ["zone"])
    op.create_index("ix_ledgers_owner_job_id", "ledgers", ["owner", "job_id"])
    op.create_index("ix_ledgers_project_job_id", "ledgers", ["project", "job_id"])
    op.create_index("ix_ledger_tags_name_value_job_id", "ledger_tags", ["name", "value", "job_id"])
    op.create_index("ix_jobs_status_id_seq", "jobs", ["status", "id", "seq"])
    op.create_table(
        "ledger_placements",
        *_placed(),
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("begin_ms", sa.BigInteger(), nullable=False),
        sa.Column("end_ms", sa.BigInteger(), nullable=False),
        sa.Column("minutes", sa.Integer(), nullable=False),
        sa.Column("end_hour", sa.Integer(), nullable=False),
        sa.Column("cause", sa.String(24), nullable=True),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in _SPANS),
        sa.Column("is_noticed", sa.Integer(), nullable=False),
        sa.Column("is_notice_used", sa.Integer(), nullable=False),
        sa.Column("lost_steps", sa.BigInteger(), nullable=False),
        sa.Column("lost_ms", sa.BigInteger(), nullable=False),
        sa.Column("lost_micros", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", name="pk_ledger_placements"),
    )
    op.create_table(
        "ledger_hours",
        *_placed(),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("day_hour", sa.Integer(), nullable=False),
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("node_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "zone", "hour", name="pk_ledger_hours"),
    )
    _index("ledger_hours", "sums", "zone day_hour instance_type hour project node_ms")
    _index("ledger_placements", "sums", "zone end_hour instance_type cause")
    _index("ledger_placements", "minutes", "minutes cause end_ms zone instance_type project")


def _index(table: str, name: str, columns: str) -> None:
    op.create_index(f"ix_{table}_{name}", table, columns.split())


def _placed() -> tuple[sa.Column[str], sa.Column[int], sa.Column[str]]:
    return (
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_status_id_seq", "jobs")
    for name in TABLES:
        op.drop_table(name)
