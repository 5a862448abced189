"""Columns and tags by which lists find jobs, without reading their folds.

The service fills them at its next start, because it folds all jobs again then.

Revision: 0025
Follows: 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_LISTED = ("submitted_at", "id", "status", "project", "owner", "engine", "name")


def upgrade() -> None:
    with op.batch_alter_table("jobs") as table:
        table.add_column(sa.Column("name", sa.Text(), nullable=True))
        table.add_column(sa.Column("engine", sa.String(16), nullable=True))
    op.drop_index("ix_jobs_submitted_at_id", "jobs")
    op.create_index("ix_jobs_list", "jobs", list(_LISTED))
    op.create_table(
        "job_tags",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_job_tags"),
    )
    op.create_index("ix_job_tags_name_job_id_value", "job_tags", ["name", "job_id", "value"])


def downgrade() -> None:
    op.drop_table("job_tags")
    op.drop_index("ix_jobs_list", "jobs")
    op.create_index("ix_jobs_submitted_at_id", "jobs", ["submitted_at", "id"])
    with op.batch_alter_table("jobs") as table:
        table.drop_column("engine")
        table.drop_column("name")
