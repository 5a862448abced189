"""Uploaded code, for replicas without a shared home directory.

Revision: 0024
Follows: 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "code_pieces",
        sa.Column("owner", sa.String(40), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("owner", "digest", name="pk_code_pieces"),
    )
    op.create_table(
        "code_trees",
        sa.Column("owner", sa.String(40), nullable=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("entries", sa.Text(), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("owner", "id", name="pk_code_trees"),
    )
    op.create_index("ix_code_trees_used_at", "code_trees", ["used_at"])


def downgrade() -> None:
    op.drop_table("code_trees")
    op.drop_table("code_pieces")
