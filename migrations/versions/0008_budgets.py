"""Budgets of projects and users, and of which share of them people have been warned.

Revision: 0008
Follows: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "budgets",
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("monthly_micros", sa.BigInteger(), nullable=False),
        sa.Column("warn_at", sa.JSON(), nullable=False),
        sa.Column("on_reached", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("scope", "name", name="pk_budgets"),
    )
    op.create_table(
        "budget_warnings",
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("percent", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("spent_micros", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "name", "month", "percent", name="pk_budget_warnings"),
    )


def downgrade() -> None:
    op.drop_table("budget_warnings")
    op.drop_table("budgets")
