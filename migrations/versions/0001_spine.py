"""The journal, its cache, and what is mutable by nature.

Revision: 0001
Follows: nothing
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
ID = sa.String(32)


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("submitted_at", TIME, nullable=False),
        sa.Column("fold", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_submitted_at_id", "jobs", ["submitted_at", "id"])
    op.create_table(
        "job_events",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("recorded_at", TIME, nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(48), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "seq", name="pk_job_events"),
        sa.UniqueConstraint("cursor", name="uq_job_events_cursor"),
    )
    op.create_table(
        "metric_points",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("n", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "n", name="pk_metric_points"),
    )
    op.create_table(
        "report_marks",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", name="pk_report_marks"),
    )
    op.create_table(
        "watches",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("due_at", TIME, nullable=False),
        sa.Column("seen_at", TIME, nullable=True),
        sa.Column("trouble", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", name="pk_watches"),
    )
    op.create_index("ix_watches_due_at", "watches", ["due_at"])
    op.create_table(
        "submissions",
        sa.Column("idempotency_key", sa.String(200), nullable=False),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("idempotency_key", name="pk_submissions"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )


def downgrade() -> None:
    for table in (
        "tokens",
        "submissions",
        "watches",
        "report_marks",
        "metric_points",
        "job_events",
        "jobs",
    ):
        op.drop_table(table)
