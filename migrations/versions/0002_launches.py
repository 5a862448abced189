"""What launchers without a memory of their own need: launch tokens, copied events, and who speaks for a job.

Revision: 0002
Follows: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
ID = sa.String(32)
KEY = sa.String(48)


def upgrade() -> None:
    op.create_table(
        "launches",
        sa.Column("key", KEY, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("state_at", TIME, nullable=False),
        sa.Column("posted_at", TIME, nullable=True),
        sa.Column("request_id", sa.String(64), nullable=True),
        sa.Column("engine_id", sa.BigInteger(), nullable=True),
        sa.Column("cancelled_at", TIME, nullable=True),
        sa.Column("missing_since", TIME, nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_launches"),
    )
    op.create_index("ix_launches_job_id", "launches", ["job_id"])
    op.create_table(
        "launch_events",
        sa.Column("key", KEY, nullable=False),
        sa.Column("n", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", "n", name="pk_launch_events"),
    )
    op.create_table(
        "musters",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("n", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("incarnation", sa.String(64), nullable=False),
        sa.Column("asked_at", TIME, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "n", name="pk_musters"),
    )
    op.create_index(
        "ix_musters_job_id_incarnation", "musters", ["job_id", "incarnation"], unique=True
    )


def downgrade() -> None:
    for table in ("musters", "launch_events", "launches"):
        op.drop_table(table)
