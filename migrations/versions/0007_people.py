"""Users, projects, tokens with scopes and ends, sessions, and the audit log; and whose each job is.

Jobs that were there before belong to the project `default`, and to nobody. Tokens that were there before are the
owner's, with all scopes and without an end; the service turns their digests into MACs when it starts. On the way back
those tokens are gone, as their old digests are: the service makes a new first one.

Revision: 0007
Follows: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
NAME = sa.String(64)
JOBS = sa.table("jobs", sa.column("project", NAME), sa.column("owner", NAME))
TOKENS = sa.table("tokens", sa.column("sha256", NAME), sa.column("scopes", NAME))

REFUSALS = {
    "sqlite": (
        "CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
        "CREATE TRIGGER audit_is_not_removed BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION audit_refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$",
        "CREATE TRIGGER audit_is_not_changed BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_refuses()",
        "CREATE TRIGGER audit_is_not_emptied BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_refuses()",
    ),
}


def upgrade() -> None:
    _jobs()
    _tokens()
    op.create_table(
        "users",
        sa.Column("name", NAME, nullable=False),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("disabled_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_users"),
    )
    projects = op.create_table(
        "projects",
        sa.Column("name", NAME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("archived_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
    )
    op.execute(projects.insert().values(name="default", created_at=sa.func.current_timestamp()))
    op.create_table(
        "members",
        sa.Column("project", NAME, nullable=False),
        sa.Column("user", NAME, nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("project", "user", name="pk_members"),
    )
    op.create_index("ix_members_user", "members", ["user"])
    op.create_table(
        "sessions",
        sa.Column("id_sha256", NAME, nullable=False),
        sa.Column("token_id", sa.String(16), nullable=False),
        sa.Column("csrf", NAME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id_sha256", name="pk_sessions"),
    )
    op.create_index("ix_sessions_token_id", "sessions", ["token_id"])
    _audit()


def _jobs() -> None:
    for column in ("project", "owner"):
        op.add_column("jobs", sa.Column(column, NAME, nullable=True))
    op.execute(sa.update(JOBS).values(project="default", owner=""))
    with op.batch_alter_table("jobs") as table:
        for column in ("project", "owner"):
            table.alter_column(column, existing_type=NAME, nullable=False)
    for column in ("project", "owner"):
        op.create_index(f"ix_jobs_{column}_submitted_at_id", "jobs", [column, "submitted_at", "id"])


def _tokens() -> None:
    for column in (
        sa.Column("mac", NAME, nullable=True),
        sa.Column("user", NAME, nullable=True),
        sa.Column("project", NAME, nullable=True),
        sa.Column("scopes", NAME, nullable=True),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("last_used_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.Column("replaced_by", sa.String(16), nullable=True),
    ):
        op.add_column("tokens", column)
    op.execute(sa.update(TOKENS).values(scopes="read write admin"))
    with op.batch_alter_table("tokens") as table:
        table.alter_column("scopes", existing_type=NAME, nullable=False)
        table.alter_column("sha256", existing_type=NAME, nullable=True)
    op.create_index("ix_tokens_user", "tokens", ["user"])


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("actor", NAME, nullable=False),
        sa.Column("token_id", sa.String(16), nullable=True),
        sa.Column("address", NAME, nullable=True),
        sa.Column("request_id", sa.String(32), nullable=True),
        sa.Column("action", NAME, nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=True),
        sa.Column("previous_hash", NAME, nullable=False),
        sa.Column("hash", NAME, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit"),
    )
    for statement in REFUSALS[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_refuses()")
    for table in ("sessions", "members", "projects", "users"):
        op.drop_table(table)
    op.drop_index("ix_tokens_user", "tokens")
    op.execute(sa.delete(TOKENS).where(TOKENS.c.sha256.is_(None)))
    with op.batch_alter_table("tokens") as table:
        for column in (
            *("mac", "user", "project", "scopes"),
            *("expires_at", "last_used_at", "revoked_at", "replaced_by"),
        ):
            table.drop_column(column)
        table.alter_column("sha256", existing_type=NAME, nullable=False)
    for column in ("project", "owner"):
        op.drop_index(f"ix_jobs_{column}_submitted_at_id", "jobs")
    with op.batch_alter_table("jobs") as table:
        for column in ("project", "owner"):
            table.drop_column(column)
