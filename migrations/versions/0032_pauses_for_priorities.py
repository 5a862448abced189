"""Pauses of running jobs for waiting ones of a higher priority.

Revision: 0032
Follows: 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("quotas", sa.Column("may_pause_for_priority", sa.Boolean(), nullable=True))
    op.add_column("queue_entries", sa.Column("paused_for", sa.String(32), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("queue_entries") as table:
        table.drop_column("paused_for")
    with op.batch_alter_table("quotas") as table:
        table.drop_column("may_pause_for_priority")
