"""Accounts of users at an identity provider, and their sign-ins.

Revision: 0031
Follows: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("users", sa.Column("confirmed_until", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "identities",
        sa.Column("issuer", sa.String(255), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("granted", sa.JSON(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("issuer", "subject", name="pk_identities"),
        sa.UniqueConstraint("user", name="uq_identities_user"),
    )
    op.create_index("ix_identities_due_at", "identities", ["due_at"])
    op.create_table(
        "sign_ins",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sign_ins"),
    )
    op.create_index("ix_sign_ins_user", "sign_ins", ["user"])


def downgrade() -> None:
    for table in ("sign_ins", "identities"):
        op.drop_table(table)
    op.drop_column("users", "confirmed_until")
