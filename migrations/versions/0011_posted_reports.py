"""Where the reports of a placement begin within its attempt, so that those that it left in its store can be numbered.

Revision: 0011
Follows: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("musters") as table:
        table.add_column(sa.Column("before", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    # Who was known by what it had posted alone never asked; the version before would take it for somebody who did.
    op.execute("DELETE FROM musters WHERE n <= 0")
    with op.batch_alter_table("musters") as table:
        table.drop_column("before")
