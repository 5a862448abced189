"""What an ended job has paid in its last month, beside its fold, so that budgets need not read the fold.

Empty until the job is written again or the service has started: then the fold is read as before.

Revision: 0016
Follows: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("last_month", sa.String(7), nullable=True))
    op.add_column("jobs", sa.Column("last_month_micros", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("jobs") as table:
        table.drop_column("last_month_micros")
        table.drop_column("last_month")
