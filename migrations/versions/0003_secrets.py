"""Secrets of jobs, sealed.

Revision: 0003
Follows: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_secrets",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_job_secrets"),
    )


def downgrade() -> None:
    op.drop_table("job_secrets")
