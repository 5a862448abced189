"""Counted requests of the service to checkpoint stores, and where these stores are, for bills.

Revision: 0030
Follows: 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_COUNTERS = ("store_gets", "store_lists", "store_deletes")


def upgrade() -> None:
    with op.batch_alter_table("upkeep") as table:
        for name in _COUNTERS:
            table.add_column(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "store_places",
        sa.Column("bucket", sa.String(500), nullable=False),
        sa.Column("place", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("bucket", name="pk_store_places"),
    )


def downgrade() -> None:
    op.drop_table("store_places")
    with op.batch_alter_table("upkeep") as table:
        for name in reversed(_COUNTERS):
            table.drop_column(name)
