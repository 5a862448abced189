"""Time and money of programs that report nothing, in columns of their own.

Existing rows are computed again: their version is older than that of this release.

Revision: 0014
Follows: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

COLUMNS = ("unmeasured_ms", "unmeasured_micros")


def upgrade() -> None:
    with op.batch_alter_table("ledger_shares") as table:
        for name in COLUMNS:
            # A default, because a replica of the version before inserts rows without them.
            column = sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
            table.add_column(column)


def downgrade() -> None:
    with op.batch_alter_table("ledger_shares") as table:
        for name in COLUMNS:
            table.drop_column(name)
