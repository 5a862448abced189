"""Which launcher each watched job is looked at through, so that none holds up the jobs of another.

Revision: 0004
Follows: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

WATCHES = sa.table("watches", sa.column("job_id", sa.String), sa.column("engine", sa.String))
EVENTS = sa.table(
    "job_events",
    sa.column("job_id", sa.String),
    sa.column("seq", sa.Integer),
    sa.column("body", sa.JSON),
)


def upgrade() -> None:
    op.add_column("watches", sa.Column("engine", sa.String(16), nullable=True))
    connection = op.get_bind()
    asked = sa.select(EVENTS.c.job_id, EVENTS.c.body).join(
        WATCHES, WATCHES.c.job_id == EVENTS.c.job_id
    )
    for job_id, body in connection.execute(asked.where(EVENTS.c.seq == 1)).all():
        engine = _engine(body["spec"].get("resources") or {})
        mine = sa.update(WATCHES).where(WATCHES.c.job_id == job_id)
        connection.execute(mine.values(engine=engine))
    with op.batch_alter_table("watches") as table:
        table.alter_column("engine", existing_type=sa.String(16), nullable=False)


def downgrade() -> None:
    with op.batch_alter_table("watches") as table:
        table.drop_column("engine")


def _engine(resources: dict[str, object]) -> str:
    """As `JobSpec.engine` read it in this version."""
    head = str(resources.get("infra") or "").split("/")[0].lower()
    return head if head in {"local", "slurm"} else "skypilot"
