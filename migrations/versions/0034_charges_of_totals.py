"""Charges beside the nodes in the rows of closed jobs, and the days of the service's requests to stores.

The service computes the rows of all closed jobs again after its next start, with their charges.

Revision: 0034
Follows: 0033
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_AMOUNTS = ("storage_micros", "requests_micros", "egress_micros", "disks_micros")
_KEPT = ("kept_since_ms", "kept_bytes", "kept_rest")
_COUNTERS = ("store_gets", "store_lists", "store_deletes")


def upgrade() -> None:
    with op.batch_alter_table("ledger_shares") as table:
        for name in _AMOUNTS:
            table.add_column(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
        table.add_column(
            sa.Column("has_unpriced", sa.Integer(), nullable=False, server_default="0")
        )
        table.add_column(sa.Column("has_nodes", sa.Integer(), nullable=False, server_default="1"))
    with op.batch_alter_table("ledgers") as table:
        table.add_column(
            sa.Column("charged_by", sa.String(64), nullable=False, server_default=sa.text("''"))
        )
        for name in _KEPT:
            table.add_column(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
        table.add_column(sa.Column("kept_unit_micros", sa.BigInteger(), nullable=True))
    op.create_table(
        "store_request_days",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _COUNTERS),
        sa.PrimaryKeyConstraint("job_id", "day", name="pk_store_request_days"),
    )


def downgrade() -> None:
    op.drop_table("store_request_days")
    with op.batch_alter_table("ledgers") as table:
        for name in ("kept_unit_micros", *reversed(_KEPT), "charged_by"):
            table.drop_column(name)
    op.execute("DELETE FROM ledger_shares WHERE has_nodes = 0")
    with op.batch_alter_table("ledger_shares") as table:
        for name in ("has_nodes", "has_unpriced", *reversed(_AMOUNTS)):
            table.drop_column(name)
