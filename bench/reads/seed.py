"""A database with many jobs: some are recorded event by event, the others copied from them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from holdfast.clock import SystemClock
from holdfast.domain.events import Outcome
from holdfast.store.billing.bills import BillRollups
from holdfast.store.database import writing
from holdfast.store.journal import Journal
from holdfast.store.tables.billing import (
    ledger_hours,
    ledger_placements,
    ledger_shares,
    ledger_tags,
    ledgers,
)
from holdfast.store.tables.jobs import (
    job_events,
    job_tags,
    jobs,
    metric_points,
    report_marks,
    watches,
)
from sqlalchemy import Connection, Engine, Table, delete, func, insert, select, text, update

from reads import job_histories

STORIES: Final = 200
"""Number of different jobs. A lower value reads less variety; a higher value seeds longer."""
LIVE: Final = 20
"""One in this many jobs is live."""
NEVER: Final = datetime(2099, 1, 1, tzinfo=UTC)
COPIED: Final = (
    *(job_events, job_tags, metric_points, report_marks, watches),
    *(ledgers, ledger_tags, ledger_shares, ledger_placements, ledger_hours),
)


def seed(
    journal: Journal,
    rollups: BillRollups,
    engine: Engine,
    store: str,
    *,
    job_count: int,
    event_count: int,
    points: int,
) -> str:
    """Fill an empty database; return the id of the job with the most points.

    `rollups` are those of the service, which computes rows of others again.
    """
    now = SystemClock().now()
    templates = [f"bench-{number:05d}" for number in range(min(STORIES, job_count))]
    for number, job_id in enumerate(templates):
        is_live = number % LIVE == 0
        # The service visits stores of live jobs.
        options = {"is_live": is_live, "store": store if is_live else f"s3://bench-{number % 3}"}
        facts = job_histories.story(number, event_count // job_count, now, **options)
        job = journal.submit(job_id, facts[0])  # type: ignore[arg-type]
        journal.append(job, facts[1:])
        _append(engine, job_id, facts, points if number == 0 else 20)
    with writing(engine) as connection:
        # As if the service had run at that time; otherwise all jobs would have ended within a minute.
        connection.execute(update(job_events).values(recorded_at=job_events.c.at))
    rollups.roll_up(len(templates))
    with writing(engine) as connection:
        # No launcher knows live jobs, so that they are not observed; ended jobs have no lease.
        connection.execute(update(watches).values(due_at=NEVER))
        ended = select(jobs.c.id).where(jobs.c.status.in_(list(Outcome)))
        connection.execute(delete(watches).where(watches.c.job_id.in_(ended)))
        _copy(connection, templates, job_count)
        connection.execute(text("ANALYZE"))  # As a database does by itself a minute later.
    return templates[0]


def _append(engine: Engine, job_id: str, facts: list[Any], most: int) -> None:
    rows = [{"job_id": job_id, **row} for row in job_histories.points(facts, most)]
    if not rows:
        return
    marks = [
        {"job_id": job_id, "attempt": attempt, "n": most}
        for attempt in {row["attempt"] for row in rows}
    ]
    with writing(engine) as connection:
        connection.execute(insert(metric_points), rows)
        connection.execute(insert(report_marks), marks)


def _copy(connection: Connection, templates: list[str], job_count: int) -> None:
    last: int = connection.execute(select(func.max(job_events.c.cursor))).scalar_one()
    connection.execute(text("CREATE TEMPORARY TABLE copies (template TEXT, copy TEXT, round BIGINT)"))  # fmt: skip
    # Not the first one, which has the most points.
    rows = [
        {
            "template": templates[1:][number % (len(templates) - 1)],
            "copy": f"bench-{number:05d}",
            "round": (number - len(templates)) // (len(templates) - 1) + 1,
        }
        for number in range(len(templates), job_count)
    ]
    if not rows:
        return
    connection.execute(text("INSERT INTO copies VALUES (:template, :copy, :round)"), rows)
    for table in COPIED:
        _copy_table(connection, table, last)
    name = "json_set(t.fold, '$.id', c.copy)"
    if connection.dialect.name == "postgresql":
        name = "CAST(jsonb_set(CAST(t.fold AS jsonb), '{id}', to_jsonb(c.copy)) AS json)"
    replaced = {"id": "c.copy", "fold": name}
    _insert(connection, jobs, replaced, "t.id")


def _copy_table(connection: Connection, table: Table, last: int) -> None:
    replaced = {"job_id": "c.copy"}
    if table is job_events:
        replaced["cursor"] = f"t.cursor + c.round * {last}"
    _insert(connection, table, replaced, "t.job_id")


def _insert(connection: Connection, table: Table, replaced: dict[str, str], key: str) -> None:
    names = [column.name for column in table.columns]
    quoted = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(replaced.get(name, f't."{name}"') for name in names)
    connection.execute(
        text(
            f"INSERT INTO {table.name} ({quoted}) SELECT {values} FROM copies AS c "
            f"JOIN {table.name} AS t ON {key} = c.template"
        )
    )
