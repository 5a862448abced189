"""The order in which bills were put into rows, so that sums over them can be carried on.

Revision: 0012
Follows: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("ledgers") as table:
        table.add_column(sa.Column("number", sa.BigInteger(), nullable=True))
    # The same for all that are there: the next ones follow.
    op.execute("UPDATE ledgers SET number = 0")
    with op.batch_alter_table("ledgers") as table:
        table.alter_column("number", nullable=False)
        table.create_index("ix_ledgers_number", ["number"])


def downgrade() -> None:
    with op.batch_alter_table("ledgers") as table:
        table.drop_index("ix_ledgers_number")
        table.drop_column("number")
