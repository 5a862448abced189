"""Reads and writes metric points and blocks: many rows per statement, as one JSON text.

For the reason in `store.report_ingest`: next to a busy event loop, each row read by itself waits
for Python's lock.
"""

# ruff: noqa: S608 - statements consist of constants in this module

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, TextClause, text

from holdfast.domain.metric_series import MAX_VALUE, SeriesSegment, point_segment
from holdfast.domain.sweeps.curves import CurveCell, CurveGrid, SeriesExtent
from holdfast.store.tables.metrics import MAX_NAME_CHARS

BLOCK: Final = 64
"""Reports of an attempt in one block. A lower value slows down queries of long series; a higher
value makes them coarser, and reads more single points of short attempts. It is part of the
stored data: a change requires computing all blocks again."""

Range: TypeAlias = tuple[str, int, int, int]
"""A job, an attempt, and the first and last of a range of its reports."""


def read_points(
    connection: Connection, name: str, ranges: Sequence[Range]
) -> Iterator[SeriesSegment]:
    """Read the points of one series."""
    for attempt, value, step, at_ms in _rows(connection, _POINTS, ranges, name=name):
        yield point_segment(attempt, value, step, at_ms)


def list_series(connection: Connection, ranges: Sequence[Range]) -> Iterator[tuple[str, int, int]]:
    """List the series of some reports: name, number of points, newest step."""
    yield from _rows(connection, _NAMES, ranges, longest=MAX_NAME_CHARS)


def read_blocks(
    connection: Connection, name: str, ranges: Sequence[Range], together: int = 1
) -> Iterator[tuple[Range, SeriesSegment]]:
    """Read the complete blocks of one series, `together` as one segment, with their reports."""
    asked = _block_numbers(ranges)
    size = BLOCK * together
    for job_id, number, *fields in _rows(connection, _BLOCKS, asked, name=name, together=together):
        piece = SeriesSegment(*fields)
        yield (job_id, piece.attempt, number * size + 1, (number + 1) * size), piece


def read_extents(
    connection: Connection, name: str, blocks: Sequence[Range], single: Sequence[Range]
) -> Iterator[tuple[str, SeriesExtent]]:
    """Read the range of a series of several jobs, once for blocks and once for single reports.

    Jobs without finite values are omitted.
    """
    rows = _rows(connection, _BLOCK_EXTENTS, _block_numbers(blocks), name=name)
    rows += _rows(connection, _POINT_EXTENTS, single, name=name, huge=MAX_VALUE)
    for job_id, *fields in rows:
        yield job_id, SeriesExtent(*fields)


def read_cells(
    connection: Connection,
    name: str,
    grid: CurveGrid,
    blocks: Sequence[Range],
    single: Sequence[tuple[str, int, int, int, int]],
) -> Iterator[tuple[str, CurveCell]]:
    """Read the means of several jobs over the cells of a grid.

    The last value of `single` is the distance of the reports that are read.
    """
    asked: dict[str, str | float] = {"name": name, "start": grid.start, "width": grid.width}
    rows = _rows(connection, _BLOCK_CELLS, _block_numbers(blocks), **asked)
    rows += _rows(connection, _POINT_CELLS, single, huge=MAX_VALUE, **asked)
    for job_id, *fields in rows:
        yield job_id, CurveCell(*fields)


def compute_blocks(connection: Connection, ranges: Sequence[Range]) -> str:
    """Sum up points by block: rows of `metric_blocks`, as a JSON text."""
    asked = {
        "ranges": json.dumps(ranges),
        "longest": MAX_NAME_CHARS,
        "size": BLOCK,
        "huge": MAX_VALUE,
    }
    result = connection.execute(_SUMMED[connection.dialect.name], asked)
    return result.scalar() or "[]"


def insert_blocks(connection: Connection, rows: str, ranges: Sequence[Range]) -> None:
    """Insert rows of `compute_blocks`, and mark their reports."""
    connection.execute(_ADD[connection.dialect.name], {"rows": rows})
    connection.execute(_MARK[connection.dialect.name], {"ranges": json.dumps(ranges)})


def _block_numbers(ranges: Sequence[Range]) -> list[Range]:
    """Ranges of reports as ranges of blocks."""
    return [(job_id, attempt, (first - 1) // BLOCK, last // BLOCK - 1) for job_id, attempt, first, last in ranges]  # fmt: skip


def _rows(
    connection: Connection,
    statement: dict[str, TextClause],
    ranges: Sequence[tuple[str | int, ...]],
    **more: str | float,
) -> list[Any]:
    if not ranges:
        return []
    asked = {"ranges": json.dumps(ranges), **more}
    result = connection.execute(statement[connection.dialect.name], asked)
    rows: list[Any] = json.loads(result.scalar() or "[]")
    return rows


def _both(sqlite: str, postgresql: str) -> dict[str, TextClause]:
    return {"sqlite": text(sqlite), "postgresql": text(postgresql)}


_IN_RANGE_SQLITE: Final = """
    FROM json_each(:ranges) AS asked
    CROSS JOIN metric_points AS p ON p.job_id = json_extract(asked.value, '$[0]')
        AND p.attempt = json_extract(asked.value, '$[1]')
        AND p.n BETWEEN json_extract(asked.value, '$[2]') AND json_extract(asked.value, '$[3]')
    CROSS JOIN json_each(p."values") AS v
"""
_IN_RANGE_POSTGRESQL: Final = """
    FROM json_array_elements(CAST(:ranges AS json)) AS asked(value)
    JOIN metric_points AS p ON p.job_id = asked.value ->> 0
        AND p.attempt = CAST(asked.value ->> 1 AS integer)
        AND p.n BETWEEN CAST(asked.value ->> 2 AS bigint) AND CAST(asked.value ->> 3 AS bigint)
"""
_EACH_VALUE: Final = 'CROSS JOIN json_each_text(p."values") AS v(key, value)'
_MS_SQLITE: Final = "CAST(strftime('%s', p.at) AS INTEGER) * 1000 + CAST(substr(p.at, 21, 3) AS INTEGER)"  # fmt: skip
_MS_POSTGRESQL: Final = "CAST(floor(extract(epoch FROM p.at) * 1000) AS bigint)"

_POINTS: Final = _both(
    f"""
    SELECT json_group_array(json_array(p.attempt, v.value, p.step, {_MS_SQLITE}))
    {_IN_RANGE_SQLITE} WHERE v.key = :name
    """,
    f"""
    SELECT CAST(json_agg(json_build_array(p.attempt, p."values" -> :name, p.step, {_MS_POSTGRESQL})) AS text)
    {_IN_RANGE_POSTGRESQL} WHERE p."values" -> :name IS NOT NULL
    """,
)

_NAMES: Final = _both(
    f"""
    SELECT json_group_array(json_array(name, count, step)) FROM (
        SELECT v.key AS name, count(*) AS count, max(p.step) AS step
        {_IN_RANGE_SQLITE} WHERE length(v.key) <= :longest GROUP BY v.key)
    """,
    f"""
    SELECT CAST(json_agg(json_build_array(name, count, step)) AS text) FROM (
        SELECT v.key AS name, count(*) AS count, max(p.step) AS step
        {_IN_RANGE_POSTGRESQL} {_EACH_VALUE} WHERE length(v.key) <= :longest GROUP BY v.key) AS found
    """,
)

_COLUMNS: Final = "points, not_finite, mean, low, high, first_step, last_step, first_ms, last_ms"

_SEGMENTS: Final = """
    SELECT b.job_id, b.block / :together AS number, b.attempt, sum(b.points) AS points,
        sum(b.not_finite) AS not_finite, sum(b.mean * b.points) / nullif(sum(b.points), 0) AS mean,
        min(b.low) AS low, max(b.high) AS high, min(b.first_step) AS first_step, max(b.last_step) AS last_step,
        min(b.first_ms) AS first_ms, max(b.last_ms) AS last_ms
"""

_BLOCKS: Final = _both(
    f"""
    SELECT json_group_array(json_array(job_id, number, attempt, {_COLUMNS})) FROM (
        {_SEGMENTS} FROM json_each(:ranges) AS asked
        CROSS JOIN metric_blocks AS b ON b.job_id = json_extract(asked.value, '$[0]')
            AND b.name = :name AND b.attempt = json_extract(asked.value, '$[1]')
            AND b.block BETWEEN json_extract(asked.value, '$[2]') AND json_extract(asked.value, '$[3]')
        GROUP BY b.job_id, b.attempt, number)
    """,
    f"""
    SELECT CAST(json_agg(json_build_array(job_id, number, attempt, {_COLUMNS})) AS text) FROM (
        {_SEGMENTS} FROM json_array_elements(CAST(:ranges AS json)) AS asked(value)
        JOIN metric_blocks AS b ON b.job_id = asked.value ->> 0
            AND b.name = :name AND b.attempt = CAST(asked.value ->> 1 AS integer)
            AND b.block BETWEEN CAST(asked.value ->> 2 AS bigint) AND CAST(asked.value ->> 3 AS bigint)
        GROUP BY b.job_id, b.attempt, number) AS segments
    """,
)

_BLOCKS_SQLITE: Final = """
    FROM json_each(:ranges) AS asked
    CROSS JOIN metric_blocks AS b ON b.job_id = json_extract(asked.value, '$[0]')
        AND b.name = :name AND b.attempt = json_extract(asked.value, '$[1]')
        AND b.block BETWEEN json_extract(asked.value, '$[2]') AND json_extract(asked.value, '$[3]')
    WHERE b.points > 0
"""
_BLOCKS_POSTGRESQL: Final = """
    FROM json_array_elements(CAST(:ranges AS json)) AS asked(value)
    JOIN metric_blocks AS b ON b.job_id = asked.value ->> 0
        AND b.name = :name AND b.attempt = CAST(asked.value ->> 1 AS integer)
        AND b.block BETWEEN CAST(asked.value ->> 2 AS bigint) AND CAST(asked.value ->> 3 AS bigint)
    WHERE b.points > 0
"""
_NUMBER: Final = 'CAST(p."values" ->> :name AS double precision)'
_FINITE_SQLITE: Final = "v.key = :name AND abs(v.value) < :huge"
_FINITE_POSTGRESQL: Final = f"abs({_NUMBER}) < CAST(:huge AS double precision)"

_BLOCK_EXTENTS: Final = _both(
    f"""
    SELECT json_group_array(json_array(job_id, low, high, first_step, last_step)) FROM (
        SELECT b.job_id, min(b.low) AS low, max(b.high) AS high, min(b.first_step) AS first_step, max(b.last_step) AS last_step
        {_BLOCKS_SQLITE} GROUP BY b.job_id)
    """,
    f"""
    SELECT CAST(json_agg(json_build_array(job_id, low, high, first_step, last_step)) AS text) FROM (
        SELECT b.job_id, min(b.low) AS low, max(b.high) AS high, min(b.first_step) AS first_step, max(b.last_step) AS last_step
        {_BLOCKS_POSTGRESQL} GROUP BY b.job_id) AS found
    """,
)
_POINT_EXTENTS: Final = _both(
    f"""
    SELECT json_group_array(json_array(job_id, low, high, first_step, last_step)) FROM (
        SELECT p.job_id, min(v.value) AS low, max(v.value) AS high, min(p.step) AS first_step, max(p.step) AS last_step
        {_IN_RANGE_SQLITE} WHERE {_FINITE_SQLITE} GROUP BY p.job_id)
    """,
    f"""
    SELECT CAST(json_agg(json_build_array(job_id, low, high, first_step, last_step)) AS text) FROM (
        SELECT p.job_id, min({_NUMBER}) AS low, max({_NUMBER}) AS high, min(p.step) AS first_step, max(p.step) AS last_step
        {_IN_RANGE_POSTGRESQL} WHERE {_FINITE_POSTGRESQL} GROUP BY p.job_id) AS found
    """,
)
_BLOCK_CELLS: Final = _both(
    f"""
    SELECT json_group_array(json_array(job_id, attempt, cell, mean)) FROM (
        SELECT b.job_id, b.attempt, ((b.first_step + b.last_step) / 2 - :start) / :width AS cell,
            sum(b.mean * b.points) / sum(b.points) AS mean
        {_BLOCKS_SQLITE} GROUP BY b.job_id, b.attempt, cell)
    """,
    f"""
    SELECT CAST(json_agg(json_build_array(job_id, attempt, cell, mean)) AS text) FROM (
        SELECT b.job_id, b.attempt, ((b.first_step + b.last_step) / 2 - CAST(:start AS bigint)) / CAST(:width AS bigint) AS cell,
            sum(b.mean * b.points) / sum(b.points) AS mean
        {_BLOCKS_POSTGRESQL} GROUP BY b.job_id, b.attempt, cell) AS found
    """,
)
_POINT_CELLS: Final = _both(
    f"""
    SELECT json_group_array(json_array(job_id, attempt, cell, mean)) FROM (
        SELECT p.job_id, p.attempt, (p.step - :start) / :width AS cell, avg(v.value) AS mean
        {_IN_RANGE_SQLITE} WHERE {_FINITE_SQLITE}
            AND (p.n % json_extract(asked.value, '$[4]') = 0 OR p.n = json_extract(asked.value, '$[3]'))
        GROUP BY p.job_id, p.attempt, cell)
    """,
    f"""
    SELECT CAST(json_agg(json_build_array(job_id, attempt, cell, mean)) AS text) FROM (
        SELECT p.job_id, p.attempt, (p.step - CAST(:start AS bigint)) / CAST(:width AS bigint) AS cell, avg({_NUMBER}) AS mean
        {_IN_RANGE_POSTGRESQL} WHERE {_FINITE_POSTGRESQL}
            AND (p.n % CAST(asked.value ->> 4 AS bigint) = 0 OR p.n = CAST(asked.value ->> 3 AS bigint))
        GROUP BY p.job_id, p.attempt, cell) AS found
    """,
)

_SUMS: Final = """
    count(value) AS points, count(*) - count(value) AS not_finite,
    sum(value) / nullif(count(value), 0) AS mean, min(value) AS low, max(value) AS high,
    min(step) AS first_step, max(step) AS last_step, min(at_ms) AS first_ms, max(at_ms) AS last_ms
"""

_SUMMED: Final = _both(
    f"""
    SELECT json_group_array(json_array(job_id, name, attempt, block, {_COLUMNS})) FROM (
        SELECT job_id, name, attempt, block, {_SUMS} FROM (
            SELECT p.job_id, v.key AS name, p.attempt, (p.n - 1) / :size AS block, p.step, {_MS_SQLITE} AS at_ms,
                CASE WHEN abs(v.value) < :huge THEN CAST(v.value AS REAL) END AS value
            {_IN_RANGE_SQLITE} WHERE length(v.key) <= :longest)
        GROUP BY job_id, name, attempt, block)
    """,
    f"""
    SELECT CAST(json_agg(json_build_array(job_id, name, attempt, block, {_COLUMNS})) AS text) FROM (
        SELECT job_id, name, attempt, block, {_SUMS} FROM (
            SELECT p.job_id, v.key AS name, p.attempt, (p.n - 1) / :size AS block, p.step, {_MS_POSTGRESQL} AS at_ms,
                CASE WHEN abs(CAST(v.value AS double precision)) < CAST(:huge AS double precision)
                    THEN CAST(v.value AS double precision) END AS value
            {_IN_RANGE_POSTGRESQL} {_EACH_VALUE} WHERE length(v.key) <= :longest) AS each_value
        GROUP BY job_id, name, attempt, block) AS sums
    """,
)

_KEYS: Final = "job_id, name, attempt, block"

_ADD: Final = _both(
    f"""
    INSERT INTO metric_blocks ({_KEYS}, {_COLUMNS})
    SELECT {", ".join(f"json_extract(value, '$[{i}]')" for i in range(13))} FROM json_each(:rows)
    """,
    f"""
    INSERT INTO metric_blocks ({_KEYS}, {_COLUMNS})
    SELECT value ->> 0, value ->> 1, CAST(value ->> 2 AS integer), CAST(value ->> 3 AS bigint),
        CAST(value ->> 4 AS integer), CAST(value ->> 5 AS integer),
        {", ".join(f"CAST(value ->> {i} AS double precision)" for i in (6, 7, 8))},
        {", ".join(f"CAST(value ->> {i} AS bigint)" for i in (9, 10, 11, 12))}
    FROM json_array_elements(CAST(:rows AS json))
    """,
)

_MARK: Final = _both(
    """
    INSERT INTO metric_block_marks (job_id, attempt, n)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[3]') FROM json_each(:ranges) WHERE true
    ON CONFLICT (job_id, attempt) DO UPDATE SET n = excluded.n
    """,
    """
    INSERT INTO metric_block_marks (job_id, attempt, n)
    SELECT value ->> 0, CAST(value ->> 1 AS integer), CAST(value ->> 3 AS bigint)
    FROM json_array_elements(CAST(:ranges AS json))
    ON CONFLICT (job_id, attempt) DO UPDATE SET n = excluded.n
    """,
)
