"""The node group of each placement.

Existing rows are computed again: their version is older than that of this release.

Revision: 0022
Follows: 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("ledger_placements") as table:
        # A default, because a replica of the version before inserts rows without it.
        table.add_column(
            sa.Column("node_group", sa.Text(), nullable=False, server_default=sa.text("''"))
        )


def downgrade() -> None:
    with op.batch_alter_table("ledger_placements") as table:
        table.drop_column("node_group")
