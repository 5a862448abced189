"""Quotas, the queue of jobs that wait for room in them, and the usage of owners.

Revision: 0027
Follows: 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=True),
        sa.Column("nodes", sa.BigInteger(), nullable=True),
        sa.Column("gpus", sa.BigInteger(), nullable=True),
        sa.Column("micros_per_hour", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("scope", "name", name="pk_quotas"),
    )
    op.create_table(
        "queue_entries",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("admitted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("nodes", sa.BigInteger(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("micros_per_hour", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_queue_entries"),
    )
    op.create_index("ix_queue_entries_admitted_at", "queue_entries", ["admitted_at"])
    op.create_table(
        "owner_usage",
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("gpu_hours", sa.Float(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_owner_usage"),
    )


def downgrade() -> None:
    for table in ("owner_usage", "queue_entries", "quotas"):
        op.drop_table(table)
