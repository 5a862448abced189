"""Notifications: channels, news that waits, and messages.

Revision: 0009
Follows: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "channels",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("way", sa.String(16), nullable=False),
        sa.Column("shown", sa.Text(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("mark", sa.String(64), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("digest_s", sa.Integer(), nullable=False),
        sa.Column("per_hour", sa.Integer(), nullable=False),
        sa.Column("made_by", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("rotated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("after_cursor", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_channels"),
    )
    op.create_index("ix_channels_project", "channels", ["project"])
    op.create_index("ix_channels_job_id", "channels", ["job_id"])
    op.create_table(
        "news",
        sa.Column("channel_id", sa.String(16), nullable=False),
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("channel_id", "id", name="pk_news"),
    )
    op.create_index("ix_news_channel_id_since", "news", ["channel_id", "since"])
    op.create_table(
        "news_marks",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_news_marks"),
    )
    # What happened before is told nobody.
    op.execute(
        "INSERT INTO news_marks (name, cursor) SELECT 'events', COALESCE(MAX(cursor), 0) FROM job_events"
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("channel_id", sa.String(16), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("progress", sa.String(16), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("most_tries", sa.Integer(), nullable=False),
        sa.Column("news_count", sa.Integer(), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("trouble", sa.Text(), nullable=True),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
    )
    op.create_index("ix_deliveries_due_at", "deliveries", ["due_at"])
    op.create_index("ix_deliveries_channel_id_made_at", "deliveries", ["channel_id", "made_at"])


def downgrade() -> None:
    for table in ("deliveries", "news_marks", "news", "channels"):
        op.drop_table(table)
