"""Checkpoint stores that the service tidies.

Jobs that were submitted before have no row: their workers go on removing old checkpoints, as they were told to.

Revision: 0005
Follows: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "upkeep",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tidied_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("trouble", sa.Text(), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("job_id", name="pk_upkeep"),
    )
    op.create_index("ix_upkeep_due_at", "upkeep", ["due_at"])


def downgrade() -> None:
    op.drop_table("upkeep")
