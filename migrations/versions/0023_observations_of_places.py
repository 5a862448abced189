"""Observations of places, imported recordings, and how long launches took to start.

The service fills the rows from the events of its jobs at its next start: `jobs.observed_seq` says what is missing.

Revision: 0023
Follows: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as table:
        table.add_column(sa.Column("observed_seq", sa.Integer(), nullable=True))
    op.create_table(
        "place_observations",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("is_available", sa.Boolean(), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("node_group", sa.Integer(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_place_observations"),
    )
    op.create_index("ix_place_observations_until", "place_observations", ["until"])
    op.create_index("ix_place_observations_job_id", "place_observations", ["job_id"])
    op.create_index("ix_place_observations_source_place", "place_observations", ["source", "place"])
    op.create_table(
        "trace_imports",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("imported_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_trace_imports"),
        sa.UniqueConstraint("sha256", name="uq_trace_imports_sha256"),
    )
    op.create_table(
        "launch_starts",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("launch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("engine", sa.String(16), nullable=False),
        sa.Column("capacity", sa.String(16), nullable=True),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_denied", sa.Boolean(), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("trained_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "launch", name="pk_launch_starts"),
    )
    op.create_index("ix_launch_starts_requested_at", "launch_starts", ["requested_at"])


def downgrade() -> None:
    for table in ("launch_starts", "trace_imports", "place_observations"):
        op.drop_table(table)
    with op.batch_alter_table("jobs") as table:
        table.drop_column("observed_seq")
