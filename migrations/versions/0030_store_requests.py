"""Counted requests of the service to checkpoint stores, for the bills of their jobs.

Revision: 0030
Follows: 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0027"
branch_labels = None
depends_on = None

_COUNTERS = ("store_gets", "store_lists", "store_deletes")


def upgrade() -> None:
    with op.batch_alter_table("upkeep") as table:
        for name in _COUNTERS:
            table.add_column(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("upkeep") as table:
        for name in reversed(_COUNTERS):
            table.drop_column(name)
