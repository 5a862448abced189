"""Metric series of jobs: single points, or blocks of 64 reports for long series.

A block consists of reports that no longer change: all of them are recorded, none twice. So it is
computed once, by the rollup task or by the first query. Points that are in no block yet are read
one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, Engine, and_, func, select

from holdfast.domain.events import (
    CapacityLost,
    CheckpointCommitted,
    Finished,
    NodesReady,
    Outcome,
    RanksRestarted,
    TrainingStarted,
)
from holdfast.domain.jobs.job import Job
from holdfast.domain.metric_series import SeriesSegment, is_partly_lost, retained_steps_by_attempt
from holdfast.domain.sweeps.curves import CurveCell, CurveGrid, SeriesExtent
from holdfast.store import metric_blocks as block_queries
from holdfast.store.database import reading, writing
from holdfast.store.journal import recorded_event
from holdfast.store.metric_blocks import BLOCK, Range, compute_blocks, insert_blocks
from holdfast.store.tables.jobs import job_events, report_marks
from holdfast.store.tables.metrics import metric_block_marks, metric_blocks

MAX_RAW_REPORTS: Final = 20_000
"""Reports of a job up to which points are read instead of blocks. A lower value makes a series of a
few hours coarse; a higher value slows down queries."""
MAX_BLOCKS_PER_WRITE: Final = 64
"""Blocks written in one transaction. A lower value adds transactions; a higher value lets other
writers wait longer."""
CURVE_NAMES_JOBS: Final = 20
"""Jobs of which the names of series are read to compare many. A lower value may miss a name that few jobs log; a higher value
reads more."""
OVERSAMPLING: Final = 4
"""Segments read for each requested bucket. A lower value makes the edges of buckets less exact; a
higher value reads more."""


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """A series of a job."""

    name: str
    points: int
    """Number of points, including those that are not finite."""
    last_step: int


@dataclass(frozen=True, slots=True)
class _Progress:
    """How many reports of an attempt are recorded, and how many of them are in blocks."""

    job_id: str
    attempt: int
    received: int
    in_block_count: int

    @property
    def all_reports(self) -> Range:
        """All recorded reports."""
        return self.job_id, self.attempt, 1, self.received

    @property
    def block_range(self) -> Range:
        """Reports in blocks."""
        return self.job_id, self.attempt, 1, self.in_block_count

    @property
    def remaining(self) -> Range:
        """Recorded reports outside of blocks."""
        return self.job_id, self.attempt, self.in_block_count + 1, self.received

    @property
    def newest(self) -> Range:
        """The newest reports, at most as many as a block has."""
        return self.job_id, self.attempt, max(1, self.received - BLOCK + 1), self.received


class MetricSeries:
    """The metric series of all jobs."""

    def __init__(self, engine: Engine, point_by_point: int = MAX_RAW_REPORTS) -> None:
        self._engine = engine
        self._max_raw_reports = point_by_point

    def roll_up(self, limit: int) -> int:
        """Write due blocks, at most `limit`; return how many were written."""
        done = 0
        while done < limit and (ranges := self._due(min(MAX_BLOCKS_PER_WRITE, limit - done))):
            self._write(ranges)
            done += sum((last - first + 1) // BLOCK for _, _, first, last in ranges)
        return done

    def names(self, job_id: str) -> list[SeriesInfo]:
        """The series of a job, by name."""
        self._write_due_blocks(job_id)
        blocks = metric_blocks.c
        count = func.sum(blocks.points + blocks.not_finite)
        query = select(blocks.name, count, func.max(blocks.last_step)).group_by(blocks.name)
        with reading(self._engine) as connection:
            rows = connection.execute(query.where(blocks.job_id == job_id))
            found = {name: (int(points), step) for name, points, step in rows}
            rest = [mark.remaining for mark in _job_progress(connection, job_id)]
            for name, rest_points, step in block_queries.list_series(connection, rest):
                points, last_step = found.get(name, (0, 0))
                found[name] = points + rest_points, max(last_step, step)
        return [SeriesInfo(name, *totals) for name, totals in sorted(found.items())]

    def names_of_some(self, job_ids: Collection[str]) -> list[str]:
        """The names of the series of several jobs, as the newest reports of the first of them show."""
        with reading(self._engine) as connection:
            marks = [mark for mark in _progress_of(connection, job_ids) if mark.received]
            some = sorted({mark.job_id for mark in marks})[:CURVE_NAMES_JOBS]
            query = select(metric_blocks.c.name).where(metric_blocks.c.job_id.in_(some)).distinct()
            found = set(connection.execute(query).scalars())
            newest = [mark.newest for mark in marks if mark.job_id in some]
            found |= {name for name, _, _ in block_queries.list_series(connection, newest)}
        return sorted(found)

    def extents(self, job_ids: Collection[str], name: str) -> dict[str, SeriesExtent]:
        """The range of one series of each job; jobs without finite values are omitted."""
        found: dict[str, SeriesExtent] = {}
        with reading(self._engine) as connection:
            marks = _progress_of(connection, job_ids)
            ranges = [mark.block_range for mark in marks], [mark.remaining for mark in marks]
            for job_id, one in block_queries.read_extents(connection, name, *ranges):
                found[job_id] = found[job_id].merged(one) if job_id in found else one
        return found

    def curves(
        self, job_ids: Collection[str], name: str, grid: CurveGrid
    ) -> dict[str, list[CurveCell]]:
        """One series of each job as means over the cells of a grid, unordered.

        Of a job with few reports for each cell, single reports are read, at most `OVERSAMPLING` for each cell.
        """
        found: dict[str, list[CurveCell]] = {}
        if not grid.cells:
            return found
        with reading(self._engine) as connection:
            marks = _progress_of(connection, job_ids)
            in_blocks = {mark.job_id for mark in marks if mark.in_block_count >= BLOCK * grid.cells}
            blocks = [mark.block_range for mark in marks if mark.job_id in in_blocks]
            single = [
                (
                    *(mark.remaining if mark.job_id in in_blocks else mark.all_reports),
                    max(1, mark.received // (OVERSAMPLING * grid.cells)),
                )
                for mark in marks
            ]
            for job_id, cell in block_queries.read_cells(connection, name, grid, blocks, single):
                found.setdefault(job_id, []).append(cell)
        return found

    def segments(
        self, job_id: str, name: str, limits: Mapping[int, float], most: int = 0
    ) -> list[SeriesSegment]:
        """Segments of one series, unordered; for long jobs, several blocks form one segment.

        A segment that would contain one of `limits` is split into points. `most` is the least
        number of segments, if there are as many points; several times as many may be returned. 0:
        all blocks.
        """
        with reading(self._engine) as connection:
            marks = _job_progress(connection, job_id)
        if sum(mark.received for mark in marks) <= self._max_raw_reports:
            with reading(self._engine) as connection:
                return list(
                    block_queries.read_points(
                        connection, name, [mark.all_reports for mark in marks]
                    )
                )
        self._write_due_blocks(job_id)
        with reading(self._engine) as connection:
            marks = _job_progress(connection, job_id)
            together = (
                sum(mark.in_block_count for mark in marks) // (BLOCK * OVERSAMPLING * most)
                if most
                else 1
            )
            ranges = [mark.block_range for mark in marks]
            found, mixed = _split_by_loss(
                block_queries.read_blocks(connection, name, ranges, max(1, together)), limits
            )
            more, single = _split_by_loss(
                block_queries.read_blocks(connection, name, mixed), limits
            )
            single += [mark.remaining for mark in marks]
            return [*found, *more, *block_queries.read_points(connection, name, single)]

    def retained_steps(self, job: Job) -> dict[int, float]:
        """The step up to which the work of each attempt of a job counts, as in its bill."""
        kinds = [NodesReady, TrainingStarted, RanksRestarted, CapacityLost, Finished]
        # While the job trains, and once it has succeeded, the checkpoint does not matter; it is
        # most of a log.
        if not (job.is_training or job.outcome is Outcome.SUCCEEDED):
            kinds.append(CheckpointCommitted)
        query = (
            select(job_events)
            .where(job_events.c.job_id == job.id)
            .where(job_events.c.kind.in_([kind.__name__ for kind in kinds]))
            .order_by(job_events.c.seq)
        )
        with reading(self._engine) as connection:
            facts = [recorded_event(row).event for row in connection.execute(query).mappings()]
        return retained_steps_by_attempt(facts)

    def _write_due_blocks(self, job_id: str) -> None:
        """Write the blocks that the rollup task has not written yet."""
        while ranges := self._due(MAX_BLOCKS_PER_WRITE, report_marks.c.job_id == job_id):
            self._write(ranges)

    def _due(self, limit: int, *where: ColumnElement[bool]) -> list[Range]:
        """Complete blocks that are not written yet, at most `limit`, as ranges of reports."""
        is_due = report_marks.c.n - _BLOCK_MARK >= BLOCK
        with reading(self._engine) as connection:
            marks = _read_progress(connection, limit, is_due, *where)
        return list(_next_ranges(marks, limit))

    def _write(self, ranges: Sequence[Range]) -> None:
        with reading(self._engine) as connection:
            rows = compute_blocks(connection, ranges)
        with writing(self._engine) as connection:
            if _are_next(connection, ranges):  # Otherwise, another writer has written them since.
                insert_blocks(connection, rows, ranges)


def _split_by_loss(
    found: Iterable[tuple[Range, SeriesSegment]], limits: Mapping[int, float]
) -> tuple[list[SeriesSegment], list[Range]]:
    """Segments that are lost or retained as a whole, and the reports of the others."""
    whole, mixed = list[SeriesSegment](), list[Range]()
    for reports, piece in found:
        if is_partly_lost(piece, limits):
            mixed.append(reports)
        else:
            whole.append(piece)
    return whole, mixed


_BLOCK_MARK: Final = func.coalesce(metric_block_marks.c.n, 0)


def _read_progress(
    connection: Connection, limit: int | None, *where: ColumnElement[bool]
) -> list[_Progress]:
    mine = and_(
        metric_block_marks.c.job_id == report_marks.c.job_id,
        metric_block_marks.c.attempt == report_marks.c.attempt,
    )
    columns = report_marks.c.job_id, report_marks.c.attempt, report_marks.c.n, _BLOCK_MARK
    query = select(*columns).select_from(report_marks.outerjoin(metric_block_marks, mine))
    return [_Progress(*row) for row in connection.execute(query.where(*where).limit(limit))]


def _job_progress(connection: Connection, job_id: str) -> list[_Progress]:
    return _read_progress(connection, None, report_marks.c.job_id == job_id)


def _progress_of(connection: Connection, job_ids: Collection[str]) -> list[_Progress]:
    return _read_progress(connection, None, report_marks.c.job_id.in_(job_ids))


def _are_next(connection: Connection, ranges: Sequence[Range]) -> bool:
    wanted = {(job_id, attempt): first - 1 for job_id, attempt, first, _ in ranges}
    jobs = {job_id for job_id, _ in wanted}
    marks = _read_progress(connection, None, report_marks.c.job_id.in_(jobs))
    blocked = {(mark.job_id, mark.attempt): mark.in_block_count for mark in marks}
    return all(blocked.get(key) == n for key, n in wanted.items())


def _next_ranges(marks: Iterable[_Progress], limit: int) -> Iterator[Range]:
    """The next blocks of some attempts, at most `limit`."""
    for mark in marks:
        count = min(limit, (mark.received - mark.in_block_count) // BLOCK)
        if count:
            yield (
                mark.job_id,
                mark.attempt,
                mark.in_block_count + 1,
                mark.in_block_count + count * BLOCK,
            )
        limit -= count
