"""Whether the money of a placement is simulated or estimated, beside it.

Rows that are there do not say: all are made again, from the logs.

Revision: 0013
Follows: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

MARKS = ("simulated", "is_price_estimate")
ROWS = ("ledger_tags", "ledger_shares", "ledger_placements", "ledger_hours", "ledgers")


def upgrade() -> None:
    for table in ROWS:
        op.execute(sa.table(table).delete())
    with op.batch_alter_table("ledger_placements") as table:
        for name in MARKS:
            table.add_column(sa.Column(name, sa.Integer(), nullable=True))
    with op.batch_alter_table("ledger_placements") as table:
        for name in MARKS:
            table.alter_column(name, nullable=False)


def downgrade() -> None:
    with op.batch_alter_table("ledger_placements") as table:
        for name in MARKS:
            table.drop_column(name)
