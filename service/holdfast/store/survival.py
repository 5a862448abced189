"""How long nodes of a kind have lasted, as far as jobs of this service have had some."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Engine as Database
from sqlalchemy import select

from holdfast.domain.safety import Past, kind_of
from holdfast.domain.spec import Engine, engine_of
from holdfast.store import folds
from holdfast.store.database import reading
from holdfast.store.schema import job_events, jobs

NEWEST: Final = 200
"""Jobs that are looked through. Smaller forgets last month; bigger holds up whoever submits."""


def past_of(database: Database, kind: str) -> Past:
    """What the newest jobs on nodes of a kind have had, `kind` being a `kind_of`."""
    newest = (
        select(jobs.c.id, jobs.c.fold, job_events.c.body)
        .join(job_events, (job_events.c.job_id == jobs.c.id) & (job_events.c.seq == 1))
        .order_by(jobs.c.submitted_at.desc())
        .limit(NEWEST)
    )
    node_ms = losses = 0
    with reading(database) as connection:
        for row in connection.execute(newest):
            resources = row.body["spec"].get("resources", {})
            if engine_of(resources) is not Engine.SKYPILOT or kind_of(resources) != kind:
                continue
            job = folds.load(connection, row.id, row.fold)
            node_ms += job.account.node_ms
            losses += job.preemptions
    return Past(node_ms / 1000, losses)
