"""Series: aggregated blocks equal their points, for any number of points and writers."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from holdfast.domain.metric_series import Axis, Bucket, to_buckets
from holdfast.domain.sweeps.curves import CurveGrid
from holdfast.store.journal import Journal
from holdfast.store.metric_blocks import BLOCK
from holdfast.store.metrics import MAX_RAW_REPORTS, MetricSeries, SeriesInfo
from holdfast.store.tables.metrics import MAX_NAME_CHARS, metric_blocks
from holdfast_worker.protocol.reports import Report, ReportKind
from sqlalchemy import Engine, func, select
from support.events import at, launched, lost, ready, submitted, training

JOB = "job-1"


def point_report(n: int, step: int, attempt: int = 1, **values: float | None) -> Report:
    body: dict[str, Any] = {"step": step, "values": values}
    return Report(attempt, n, at(100 * attempt + n).isoformat(), ReportKind.PROGRESS, body)


def start_training(journal: Journal) -> None:
    journal.append(journal.submit(JOB, submitted()), [launched(1), ready(2), training(3)])


def again(journal: Journal, attempt: int, step: int) -> None:
    """The next attempt, which continues from a step."""
    events = lost(10, attempt=attempt - 1), ready(20, attempt=attempt)
    journal.append(journal.read(JOB), [*events, training(30, attempt=attempt, step=step)])


def ingest_points(journal: Journal, count: int, attempt: int = 1, first_step: int = 0) -> None:
    """Ingest a number of points, one for each step."""
    reports = [
        point_report(n, first_step + n, attempt, loss=math.sin(first_step + n))
        for n in range(1, count + 1)
    ]
    journal.ingest(JOB, attempt, reports)


def drawn(
    engine: Engine, journal: Journal, most: int = 10, *, name: str = "loss", by_blocks: bool = True
) -> list[Bucket]:
    series = MetricSeries(engine, point_by_point=0 if by_blocks else MAX_RAW_REPORTS)
    limits = series.retained_steps(journal.read(JOB))
    return to_buckets(series.segments(JOB, name, limits, most), limits, Axis.STEP, most)


def counted(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(metric_blocks)).scalar_one()


def same(one: list[Bucket], other: list[Bucket]) -> bool:
    """Whether two series look alike; a mean of means differs in its last bits."""
    return len(one) == len(other) and all(
        a.is_lost == b.is_lost
        and (a.segment.attempt, a.segment.points, a.segment.not_finite)
        == (b.segment.attempt, b.segment.points, b.segment.not_finite)
        and (a.segment.first_step, a.segment.last_step)
        == (b.segment.first_step, b.segment.last_step)
        and (a.segment.first_ms, a.segment.last_ms) == (b.segment.first_ms, b.segment.last_ms)
        and a.segment.mean == pytest.approx(b.segment.mean, abs=1e-9)
        and a.segment.low == pytest.approx(b.segment.low)
        and a.segment.high == pytest.approx(b.segment.high)
        for a, b in zip(one, other, strict=True)
    )


def test_each_bucket_has_mean_low_and_high(engine: Engine, journal: Journal) -> None:
    start_training(journal)
    values = (4.0, 1.0, 1.0, 7.0, 8.0, 9.0)
    journal.ingest(JOB, 1, [point_report(n, n, loss=value) for n, value in enumerate(values, 1)])

    curve = drawn(engine, journal, most=2)

    assert [(b.segment.mean, b.segment.low, b.segment.high, b.segment.points) for b in curve] == [
        (2.0, 1.0, 4.0, 3),
        (8.0, 7.0, 9.0, 3),
    ]
    assert [(b.segment.first_step, b.segment.last_step) for b in curve] == [(1, 3), (4, 6)]


def test_rolled_back_points_form_lost_segments(engine: Engine, journal: Journal) -> None:
    """The second attempt continues from step 100. The first one's work beyond it was repeated."""
    start_training(journal)
    ingest_points(journal, 150)
    again(journal, 2, 100)
    ingest_points(journal, 80, 2, first_step=100)

    for by_blocks in (True, False):
        curve = drawn(engine, journal, 1000, by_blocks=by_blocks)
        kept = [b.segment for b in curve if not b.is_lost]
        gone = [b.segment for b in curve if b.is_lost]
        assert sum(piece.points for piece in kept) == 180
        assert [piece.first_step for piece in gone] == list(range(101, 151))
        # One series, which continues where the first attempt was cut off.
        steps = [(piece.first_step, piece.last_step) for piece in kept]
        assert all(before[1] < after[0] for before, after in itertools.pairwise(steps))
        assert {piece.attempt for piece in gone} == {1}


def test_combined_blocks_are_cut_at_the_exact_step(engine: Engine, journal: Journal) -> None:
    start_training(journal)
    for first in range(0, 3000, 1000):
        reports = [point_report(n, n, loss=1.0) for n in range(first + 1, first + 1001)]
        journal.ingest(JOB, 1, reports)
    again(journal, 2, 1234)
    ingest_points(journal, 10, 2, first_step=1234)

    pieces = MetricSeries(engine, point_by_point=0).segments(JOB, "loss", {1: 1234}, 1)
    kept, gone = drawn(engine, journal, 1)[0], drawn(engine, journal, 1)[1]

    assert sum(piece.points for piece in pieces) == 3010
    assert len(pieces) < 150
    assert (kept.is_lost, kept.segment.last_step, kept.segment.points) == (False, 1234, 1234)
    assert (gone.is_lost, gone.segment.first_step, gone.segment.points) == (True, 1235, 1766)


def test_blocks_aggregate_to_the_same_buckets_as_points(engine: Engine, journal: Journal) -> None:
    """Some values are not finite, some are missing, and events lie in between."""
    start_training(journal)
    rng = random.Random(7)
    reports = []
    for n in range(1, 10 * BLOCK + 30):
        if n % 50 == 0:
            body: dict[str, Any] = {"step": n, "detail": "full"}
            reports.append(Report(1, n, at(n).isoformat(), ReportKind.CHECKPOINT_FAILED, body))
            continue
        values = {"loss": rng.choice([rng.gauss(0, 1), rng.gauss(0, 1), None]), "lr": 1e-4}
        reports.append(
            point_report(n, n, **{k: v for k, v in values.items() if rng.random() < 0.9})
        )
    journal.ingest(JOB, 1, reports)

    for name in ("loss", "lr"):
        pieces = MetricSeries(engine, point_by_point=0).segments(JOB, name, {})
        single = MetricSeries(engine).segments(JOB, name, {})
        assert len(pieces) < len(single)
        assert sum(p.points for p in pieces) == sum(p.points for p in single)
        assert same(to_buckets(pieces, {}, Axis.STEP, 1), to_buckets(single, {}, Axis.STEP, 1))
        assert same(to_buckets(pieces, {}, Axis.TIME, 1), to_buckets(single, {}, Axis.TIME, 1))


def test_blocks_are_written_once_and_only_when_they_are_whole(
    engine: Engine, journal: Journal
) -> None:
    start_training(journal)
    ingest_points(journal, 3 * BLOCK - 1)
    series = MetricSeries(engine)

    assert series.roll_up(1) == 1
    assert series.roll_up(99) == 1
    assert series.roll_up(99) == 0
    assert counted(engine) == 2
    journal.ingest(JOB, 1, [point_report(3 * BLOCK, 3 * BLOCK, loss=0.0)])
    assert series.roll_up(99) == 1


def test_blocks_of_many_jobs_are_written_together(engine: Engine, journal: Journal) -> None:
    for number in range(5):
        name = f"job-{number}"
        journal.append(journal.submit(name, submitted()), [launched(1), ready(2)])
        reports = [point_report(n, n, loss=float(number)) for n in range(1, 2 * BLOCK + 1)]
        journal.ingest(name, 1, reports)

    done = MetricSeries(engine).roll_up(99)

    assert done == counted(engine) == 10
    whole = MetricSeries(engine, point_by_point=0).segments("job-3", "loss", {})
    assert [(p.points, p.mean) for p in whole] == [(BLOCK, 3.0), (BLOCK, 3.0)]


def test_blocks_written_by_another_replica_are_not_rewritten(
    engine: Engine, journal: Journal
) -> None:
    start_training(journal)
    ingest_points(journal, 2 * BLOCK)
    one, other = MetricSeries(engine), MetricSeries(engine)
    due = one._due(9)
    other.roll_up(9)

    one._write(due)

    assert counted(engine) == 2
    assert one.roll_up(9) == 0


def test_series_names_come_from_blocks_and_unblocked_points(
    engine: Engine, journal: Journal
) -> None:
    start_training(journal)
    ingest_points(journal, BLOCK + 3)
    more = {"acc": 0.5, "x" * (MAX_NAME_CHARS + 1): 1.0}
    journal.ingest(JOB, 1, [point_report(BLOCK + 4, 900, **more)])

    assert MetricSeries(engine).names(JOB) == [
        SeriesInfo("acc", 1, 900),
        SeriesInfo("loss", BLOCK + 3, BLOCK + 3),
    ]
    assert MetricSeries(engine).names("job-2") == []


@pytest.mark.parametrize("name", ['a "b" $.c', "loss/train", "ü ☂", "$", "", "a\\b", "nul\0"])
def test_a_series_may_have_any_name(engine: Engine, journal: Journal, name: str) -> None:
    start_training(journal)
    journal.ingest(JOB, 1, [point_report(n, n, **{name: 2.0}) for n in range(1, BLOCK + 3)])
    known = name.replace("\0", "?")

    assert [item.name for item in MetricSeries(engine).names(JOB)] == [known]
    for by_blocks in (True, False):
        [bucket] = drawn(engine, journal, 1, name=known, by_blocks=by_blocks)
        assert (bucket.segment.points, bucket.segment.mean) == (BLOCK + 2, 2.0)


def test_overflowing_values_count_as_not_finite(engine: Engine, journal: Journal) -> None:
    """Two values of 1e308 would have prevented PostgreSQL from ever writing a block."""
    start_training(journal)
    values = [1e308, -1e308, 5e-324, 9e299] * (BLOCK // 4)
    journal.ingest(JOB, 1, [point_report(n, n, loss=value) for n, value in enumerate(values, 1)])

    for by_blocks in (True, False):
        [bucket] = drawn(engine, journal, 1, by_blocks=by_blocks)
        assert (bucket.segment.points, bucket.segment.not_finite) == (BLOCK // 2, BLOCK // 2)
        assert bucket.segment.mean == pytest.approx(4.5e299)


def test_point_times_have_millisecond_precision(engine: Engine, journal: Journal) -> None:
    start_training(journal)
    when = "2026-03-01T14:00:00.123999+02:00"
    body: dict[str, Any] = {"step": 1, "values": {"loss": 1.0}}
    journal.ingest(JOB, 1, [Report(1, 1, when, ReportKind.PROGRESS, body)])

    [piece] = MetricSeries(engine).segments(JOB, "loss", {})

    assert piece.first_ms == round(at(0).timestamp() * 1000) + 123


@pytest.mark.parametrize("rolled_up", [False, True])
def test_curves_of_jobs_are_means_over_common_steps(
    engine: Engine, journal: Journal, *, rolled_up: bool
) -> None:
    start_training(journal)
    ingest_points(journal, 4 * BLOCK + 2)
    journal.submit("job-2", submitted())
    series = MetricSeries(engine)
    if rolled_up:
        series.roll_up(100)

    extents = series.extents([JOB, "job-2"], "loss")
    grid = CurveGrid.over(extents, 4)
    curves = series.curves(list(extents), "loss", grid)

    values = [math.sin(n) for n in range(1, 4 * BLOCK + 3)]
    assert extents.keys() == curves.keys() == {JOB}
    assert (extents[JOB].first_step, extents[JOB].last_step) == (1, 4 * BLOCK + 2)
    assert (extents[JOB].low, extents[JOB].high) == pytest.approx((min(values), max(values)))
    assert grid.cells == 4
    drawn_values = grid.curve(curves[JOB])
    # Every fourth report or so is read, or blocks whose middle decides on their cell.
    for cell, value in enumerate(drawn_values):
        whole = values[cell * grid.width : (cell + 1) * grid.width]
        assert value == pytest.approx(sum(whole) / len(whole), abs=0.5)
    assert series.names_of_some([JOB, "job-2"]) == ["loss"]
    assert series.extents([JOB], "other") == {}
    assert series.curves([], "other", CurveGrid.over({}, 4)) == {}


def test_values_that_are_not_finite_are_in_no_curve(engine: Engine, journal: Journal) -> None:
    start_training(journal)
    values = [2.0, None, 1e300, 4.0]
    journal.ingest(JOB, 1, [point_report(n, n, loss=value) for n, value in enumerate(values, 1)])
    series = MetricSeries(engine)

    extents = series.extents([JOB], "loss")
    grid = CurveGrid.over(extents, 10)

    assert (extents[JOB].low, extents[JOB].high) == (2.0, 4.0)
    assert grid.curve(series.curves([JOB], "loss", grid)[JOB]) == [2.0, None, None, 4.0]
