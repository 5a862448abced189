"""Losses of single nodes beside the end of their placement, as rows of the same table.

Existing rows are computed again: their version is older than that of this release.

Revision: 0020
Follows: 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

KEY = "pk_ledger_placements"


def upgrade() -> None:
    with op.batch_alter_table("ledger_placements") as table:
        # A default, because a replica of the version before inserts rows without it.
        table.add_column(sa.Column("part", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("node", sa.Integer(), nullable=True))
        table.drop_constraint(KEY, type_="primary")
        table.create_primary_key(KEY, ["job_id", "attempt", "part"])


def downgrade() -> None:
    op.execute("DELETE FROM ledger_placements WHERE part > 0")
    with op.batch_alter_table("ledger_placements") as table:
        table.drop_constraint(KEY, type_="primary")
        table.create_primary_key(KEY, ["job_id", "attempt"])
        table.drop_column("node")
        table.drop_column("part")
