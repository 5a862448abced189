"""Jobs that were removed, and where the audit log begins since its oldest rows were.

The trigger that refuses to remove rows of the audit log lets those go that an anchor stands for.

Revision: 0017
Follows: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

BEFORE = {
    "sqlite": (
        "DROP TRIGGER audit_is_not_removed",
        "CREATE TRIGGER audit_is_not_removed BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "DROP TRIGGER audit_is_not_changed ON audit",
        "DROP TRIGGER audit_is_not_removed ON audit",
        "DROP FUNCTION audit_refuses_removal()",
        "CREATE TRIGGER audit_is_not_changed BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_refuses()",
    ),
}
SINCE = {
    "sqlite": (
        "DROP TRIGGER audit_is_not_removed",
        """CREATE TRIGGER audit_is_not_removed BEFORE DELETE ON audit
            WHEN NOT EXISTS (SELECT 1 FROM audit_anchors WHERE seq >= OLD.seq)
            BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
        "CREATE TRIGGER audit_anchors_are_not_changed BEFORE UPDATE ON audit_anchors BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
        "CREATE TRIGGER audit_anchors_are_not_removed BEFORE DELETE ON audit_anchors BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "DROP TRIGGER audit_is_not_changed ON audit",
        "CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION audit_refuses()",
        """CREATE FUNCTION audit_refuses_removal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF EXISTS (SELECT 1 FROM audit_anchors WHERE seq >= OLD.seq) THEN RETURN OLD; END IF;
            RAISE EXCEPTION 'the audit log is append-only'; END $$""",
        "CREATE TRIGGER audit_is_not_removed BEFORE DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_refuses_removal()",
        "CREATE TRIGGER audit_anchors_are_not_changed BEFORE UPDATE OR DELETE ON audit_anchors FOR EACH ROW EXECUTE FUNCTION audit_refuses()",
    ),
}


def upgrade() -> None:
    op.create_table(
        "removed_jobs",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("launches", sa.Integer(), nullable=False),
        sa.Column("last_month", sa.String(7), nullable=False),
        sa.Column("last_month_micros", sa.BigInteger(), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("place", sa.Text(), nullable=True),
        sa.Column("with_checkpoints", sa.Boolean(), nullable=False),
        sa.Column("trouble", sa.Text(), nullable=True),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_removed_jobs"),
    )
    for payer in ("project", "owner"):
        op.create_index(
            f"ix_removed_jobs_{payer}_last_month",
            "removed_jobs",
            [payer, "last_month", "last_month_micros"],
        )
    op.create_table(
        "audit_anchors",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_anchors"),
    )
    for statement in SINCE.get(op.get_bind().dialect.name, ()):
        op.execute(statement)


def downgrade() -> None:
    for statement in BEFORE.get(op.get_bind().dialect.name, ()):
        op.execute(statement)
    op.drop_table("audit_anchors")
    op.drop_table("removed_jobs")
