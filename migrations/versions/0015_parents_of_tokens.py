"""Which token a token was made with, and an audit log in which no row can be replaced by an INSERT OR REPLACE of SQLite.

Such a statement removes the old row without asking the triggers of DELETE.

Revision: 0015
Follows: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TRIGGER = (
    "CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit"
    " WHEN EXISTS (SELECT 1 FROM audit WHERE seq = NEW.seq)"
    " BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
)


def upgrade() -> None:
    op.add_column("tokens", sa.Column("parent", sa.String(16), nullable=True))
    op.create_index("ix_tokens_parent", "tokens", ["parent"])
    if op.get_bind().dialect.name == "sqlite":
        op.execute(_TRIGGER)


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER audit_is_not_replaced")
    op.drop_index("ix_tokens_parent", "tokens")
    op.drop_column("tokens", "parent")
