"""Sweeps: several jobs of one file with a shared budget.

Revision: 0026
Follows: 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("parallel", sa.Integer(), nullable=True),
        sa.Column("max_cost_micros", sa.BigInteger(), nullable=True),
        sa.Column("removed_micros", sa.BigInteger(), nullable=False),
        sa.Column("was_reached", sa.Boolean(), nullable=False),
        sa.Column("stop_rule", sa.JSON(), nullable=True),
        sa.Column("idempotency_key", sa.String(200), nullable=True),
        sa.Column("request_sha256", sa.String(64), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
        sa.UniqueConstraint("idempotency_key", name="uq_sweeps_idempotency_key"),
    )
    op.create_index("ix_sweeps_project_created_at", "sweeps", ["project", "created_at"])
    with op.batch_alter_table("jobs") as table:
        table.add_column(sa.Column("sweep", sa.String(32), nullable=True))
    op.create_index("ix_jobs_sweep_status_id", "jobs", ["sweep", "status", "id"])


def downgrade() -> None:
    op.drop_index("ix_jobs_sweep_status_id", "jobs")
    with op.batch_alter_table("jobs") as table:
        table.drop_column("sweep")
    op.drop_table("sweeps")
