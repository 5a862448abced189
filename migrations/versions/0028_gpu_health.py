"""Newest readings of the GPUs of jobs, and GPUs with faults.

Revision: 0028
Follows: 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gpu_readings",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("node", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(100), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("gpus", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "node", name="pk_gpu_readings"),
    )
    op.create_table(
        "unhealthy_gpus",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("node", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("gpu", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("engine", sa.String(16), nullable=False),
        sa.Column("host", sa.String(100), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "node", "gpu", name="pk_unhealthy_gpus"),
    )
    op.create_index("ix_unhealthy_gpus_at", "unhealthy_gpus", ["at"])


def downgrade() -> None:
    for table in ("unhealthy_gpus", "gpu_readings"):
        op.drop_table(table)
