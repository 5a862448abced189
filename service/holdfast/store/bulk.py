"""Many rows in one statement: what batches of reports ask for, and what they bring, as one JSON text each way.

Every row that SQLite is asked for or given by itself lets go of Python's lock, and while the event loop is busy it takes a
while to get it back: two hundred rows then take a second of waiting, and no work. PostgreSQL saves the ways there and back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, TextClause, text

from holdfast.domain.reports import Point


@dataclass(frozen=True, slots=True)
class Known:
    """What is in the tables about a job, one of its attempts, and an incarnation."""

    status: str | None
    """State, or outcome once ended; None: there is no such job."""
    mark: int
    """The last report taken of the attempt; 0: none."""
    newest_muster: int | None
    """Number of the muster that came last; None: there was none."""
    muster: int | None
    """Number of the incarnation's own; None: it has not asked."""
    attempt: int | None
    """What it was told; None: nothing yet."""


Question = tuple[str, int, str | None]
"""A job, an attempt, and an incarnation or None."""


def look_up(connection: Connection, questions: Iterable[Question]) -> dict[Question, Known]:
    """What is known of each."""
    asked = list(dict.fromkeys(questions))
    found = connection.execute(_LOOK_UP[connection.dialect.name], {"asked": json.dumps(asked)})
    rows: list[tuple[int, str | None, int | None, int | None, int | None, int | None]]
    rows = json.loads(found.scalar() or "[]")
    return {
        asked[place]: Known(status, mark or 0, newest, muster, attempt)
        for place, status, mark, newest, muster, attempt in rows
    }


def add_points(connection: Connection, points: Sequence[tuple[str, Point]]) -> None:
    """Write points, each with its job."""
    if points:
        rows = [
            (job_id, p.attempt, p.n, _time(p.at), p.step, json.dumps(p.values))
            for job_id, p in points
        ]
        connection.execute(_POINTS[connection.dialect.name], {"rows": json.dumps(rows)})


def set_marks(connection: Connection, marks: Iterable[tuple[str, int, int]]) -> None:
    """Write how far the reports of attempts are taken: job, attempt, and number."""
    if rows := sorted(marks):
        connection.execute(_MARKS[connection.dialect.name], {"rows": json.dumps(rows)})


def _time(at: datetime) -> str:
    """A moment in UTC, as SQLAlchemy writes it into SQLite."""
    return at.replace(tzinfo=None).isoformat(" ", "microseconds")


def _both(sqlite: str, postgresql: str) -> dict[str, TextClause]:
    return {"sqlite": text(sqlite), "postgresql": text(postgresql)}


_LOOK_UP: Final = _both(
    """
    SELECT json_group_array(json_array(asked.key, jobs.status, marks.n,
        (SELECT max(n) FROM musters WHERE job_id = jobs.id), mine.n, mine.attempt))
    FROM json_each(:asked) AS asked
    LEFT JOIN jobs ON jobs.id = json_extract(asked.value, '$[0]')
    LEFT JOIN report_marks AS marks ON marks.job_id = jobs.id AND marks.attempt = json_extract(asked.value, '$[1]')
    LEFT JOIN musters AS mine ON mine.job_id = jobs.id AND mine.incarnation = json_extract(asked.value, '$[2]')
    """,
    """
    SELECT CAST(json_agg(json_build_array(asked.place - 1, jobs.status, marks.n,
        (SELECT max(n) FROM musters WHERE job_id = jobs.id), mine.n, mine.attempt)) AS text)
    FROM json_array_elements(CAST(:asked AS json)) WITH ORDINALITY AS asked(value, place)
    LEFT JOIN jobs ON jobs.id = asked.value ->> 0
    LEFT JOIN report_marks AS marks
        ON marks.job_id = jobs.id AND marks.attempt = CAST(asked.value ->> 1 AS integer)
    LEFT JOIN musters AS mine ON mine.job_id = jobs.id AND mine.incarnation = asked.value ->> 2
    """,
)

_POINTS: Final = _both(
    """
    INSERT INTO metric_points (job_id, attempt, n, at, step, "values")
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]')
    FROM json_each(:rows)
    """,
    """
    INSERT INTO metric_points (job_id, attempt, n, at, step, "values")
    SELECT value ->> 0, CAST(value ->> 1 AS integer), CAST(value ->> 2 AS bigint),
        CAST(value ->> 3 AS timestamp) AT TIME ZONE 'UTC', CAST(value ->> 4 AS bigint),
        CAST(value ->> 5 AS json)
    FROM json_array_elements(CAST(:rows AS json))
    """,
)

_MARKS: Final = _both(
    """
    INSERT INTO report_marks (job_id, attempt, n)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:rows) WHERE true
    ON CONFLICT (job_id, attempt) DO UPDATE SET n = excluded.n
    """,
    """
    INSERT INTO report_marks (job_id, attempt, n)
    SELECT value ->> 0, CAST(value ->> 1 AS integer), CAST(value ->> 2 AS bigint)
    FROM json_array_elements(CAST(:rows AS json))
    ON CONFLICT (job_id, attempt) DO UPDATE SET n = excluded.n
    """,
)
