"""Shells that users open on the nodes of jobs.

Revision: 0033
Follows: 0032
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node_commands", sa.Column("terminal", sa.String(64), nullable=True))
    op.create_table(
        "node_terminals",
        sa.Column("command_id", sa.String(32), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("columns", sa.Integer(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("input", sa.LargeBinary(), nullable=False),
        sa.Column("input_end", sa.BigInteger(), nullable=False),
        sa.Column("output", sa.LargeBinary(), nullable=False),
        sa.Column("output_end", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("command_id", name="pk_node_terminals"),
    )
    op.create_index("ix_node_terminals_job_id", "node_terminals", ["job_id"])
    op.create_index("ix_node_terminals_seen_at", "node_terminals", ["seen_at"])


def downgrade() -> None:
    op.drop_table("node_terminals")
    with op.batch_alter_table("node_commands") as table:
        table.drop_column("terminal")
