"""What may still run of a launch of which the engine has lost its records, so that every replica holds launches back; and
the cost of a job's standing nodes as a line over time, so that budgets need not read the folds of live jobs.

The columns of a job are empty until it is written again: then its fold is read as before.

Revision: 0018
Follows: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

PAID: dict[str, sa.types.TypeEngine[object]] = {
    "paid_seq": sa.Integer(),
    "meter_month": sa.String(7),
    "meter_micros": sa.BigInteger(),
    "meter_rest": sa.Integer(),
    "meter_micros_per_hour": sa.BigInteger(),
    "meter_since_ms": sa.BigInteger(),
}
INDEXED = (
    "last_month",
    "paid_seq",
    "seq",
    "last_month_micros",
    "meter_month",
    "meter_since_ms",
    "meter_micros",
    "meter_rest",
    "meter_micros_per_hour",
)


def upgrade() -> None:
    op.add_column("launches", sa.Column("lost", sa.Text(), nullable=True))
    for name, kind in PAID.items():
        op.add_column("jobs", sa.Column(name, kind, nullable=True))
    for payer in ("project", "owner"):
        op.create_index(f"ix_jobs_{payer}_paid", "jobs", [payer, *INDEXED])


def downgrade() -> None:
    for payer in ("project", "owner"):
        op.drop_index(f"ix_jobs_{payer}_paid", "jobs")
    with op.batch_alter_table("jobs") as table:
        for name in PAID:
            table.drop_column(name)
    with op.batch_alter_table("launches") as table:
        table.drop_column("lost")
