"""The columns and tags by which jobs are found; everything here repeats values of the fold.

A row that an older version has inserted has no `name` until this version starts: `Journal.rebuild_stale` fills it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, delete, exists, insert, or_, update

from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.selection import MAX_TAG_CHARS, JobFilter, TagCondition
from holdfast.store.tables.jobs import job_tags, jobs

_SPECIAL: Final = {"sqlite": ("*?[", "[{}]"), "postgresql": (".*+?^$()[]{}|\\", r"\{}")}
"""Special characters of patterns by database, and how they are escaped."""


def index_columns(job: Job) -> dict[str, Any]:
    """Columns of a job's row that lists filter by."""
    return {"name": _stored(job.name), "engine": job.engine, "sweep": job.sweep or None}


def insert_tags(connection: Connection, job: Job) -> None:
    """Insert the tags of a job that has none yet."""
    tags = {_stored(name): _stored(value) for name, value in job.tags.items()}
    rows = [{"job_id": job.id, "name": name, "value": value} for name, value in tags.items()]
    if rows:
        connection.execute(insert(job_tags), rows)


def _stored(text: str) -> str:
    """A text as an index can hold it: cut, and without what databases refuse in a text."""
    return text[:MAX_TAG_CHARS].encode(errors="replace").decode().replace("\0", "?")


def index_again(connection: Connection, job: Job) -> None:
    """Replace what a job is found by."""
    connection.execute(update(jobs).where(jobs.c.id == job.id).values(**index_columns(job)))
    connection.execute(delete(job_tags).where(job_tags.c.job_id == job.id))
    insert_tags(connection, job)


def conditions(where: JobFilter, dialect: str) -> Iterator[ColumnElement[bool]]:
    """The conditions of a filter on rows of `jobs`."""
    if where.statuses:
        yield jobs.c.status.in_(where.statuses)
    if where.projects is not None:
        yield jobs.c.project.in_(where.projects)
    if where.owner is not None:
        yield jobs.c.owner == where.owner
    if where.launchers:
        yield jobs.c.engine.in_([engine.value for engine in where.launchers])
    if where.find is not None:
        names = (jobs.c.name, jobs.c.id)
        yield or_(*(_contains_ignoring_case(dialect, name, where.find) for name in names))
    if where.since is not None:
        yield jobs.c.submitted_at >= where.since
    if where.until is not None:
        yield jobs.c.submitted_at < where.until
    yield from map(_tag_condition, where.tags)


def _tag_condition(wanted: TagCondition) -> ColumnElement[bool]:
    # Of each job by itself: a set of all jobs with a tag would be built for the page and for the total.
    mine = exists().where(job_tags.c.job_id == jobs.c.id, job_tags.c.name == wanted.name)
    if wanted.values is not None:
        mine = mine.where(job_tags.c.value.in_(sorted(map(_stored, wanted.values))))
    return ~mine if wanted.is_excluded else mine


def _contains_ignoring_case(
    dialect: str, name: ColumnElement[str], text: str
) -> ColumnElement[bool]:
    """Whether a name contains a text, ignoring case.

    A database may only know ASCII letters: SQLite does, and PostgreSQL with the locale C. A Python
    function would wait for the interpreter's lock at each row. So the pattern contains each letter
    in its cases.
    """
    pattern = "".join(_letter_pattern(letter, *_SPECIAL[dialect]) for letter in text)
    if dialect == "sqlite":
        return name.bool_op("GLOB")(f"*{pattern}*")
    return name.regexp_match(pattern)


def _letter_pattern(letter: str, special: str, bare: str) -> str:
    cases = sorted({case for case in (letter, letter.lower(), letter.upper()) if len(case) == 1})
    if len(cases) > 1:
        return f"[{''.join(cases)}]"
    return bare.format(letter) if letter in special else letter
