"""An audit log and anchors in which no insert of SQLite replaces a row, whichever of its two keys it names.

`INSERT OR REPLACE` removes the old row without firing triggers of DELETE. Beside its primary key, each row has a `rowid`, and a
conflict in either of them removes it. NEW.rowid is -1 where an insert names none. So rows below 0 are refused after the insert, and
only numbers from 0 on are compared before it. A number that is not an integer sorts after all integers and is refused as well.
PostgreSQL reports a conflict of keys, or fires triggers of UPDATE; there only the anchors lack a trigger of TRUNCATE.

Revision: 0019
Follows: 0018
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

BEFORE = {
    "sqlite": (
        "DROP TRIGGER audit_is_not_replaced",
        "DROP TRIGGER audit_is_not_below_zero",
        "DROP TRIGGER audit_anchors_are_not_replaced",
        "DROP TRIGGER audit_anchors_are_not_below_zero",
        """CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
            WHEN EXISTS (SELECT 1 FROM audit WHERE seq = NEW.seq)
            BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
    ),
    "postgresql": ("DROP TRIGGER audit_anchors_are_not_emptied ON audit_anchors",),
}
SINCE = {
    "sqlite": (
        "DROP TRIGGER audit_is_not_replaced",
        """CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
            WHEN typeof(NEW.seq) <> 'integer' OR EXISTS (SELECT 1 FROM audit WHERE seq = NEW.seq)
                OR EXISTS (SELECT 1 FROM audit WHERE rowid = NEW.rowid AND rowid >= 0)
            BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
        """CREATE TRIGGER audit_is_not_below_zero AFTER INSERT ON audit WHEN NEW.rowid < 0
            BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
        """CREATE TRIGGER audit_anchors_are_not_replaced BEFORE INSERT ON audit_anchors
            WHEN typeof(NEW.seq) <> 'integer' OR EXISTS (SELECT 1 FROM audit_anchors WHERE seq = NEW.seq)
                OR EXISTS (SELECT 1 FROM audit_anchors WHERE rowid = NEW.rowid AND rowid >= 0)
            BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
        """CREATE TRIGGER audit_anchors_are_not_below_zero AFTER INSERT ON audit_anchors WHEN NEW.rowid < 0
            BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
    ),
    "postgresql": (
        "CREATE TRIGGER audit_anchors_are_not_emptied BEFORE TRUNCATE ON audit_anchors FOR EACH STATEMENT EXECUTE FUNCTION audit_refuses()",
    ),
}


def upgrade() -> None:
    for statement in SINCE.get(op.get_bind().dialect.name, ()):
        op.execute(statement)


def downgrade() -> None:
    for statement in BEFORE.get(op.get_bind().dialect.name, ()):
        op.execute(statement)
