"""Curves of several jobs on common steps."""

from __future__ import annotations

from holdfast.domain.sweeps.curves import (
    MOST_VALUES,
    CurveCell,
    CurveGrid,
    SeriesExtent,
    last_value,
)


def extent(first_step: int, last_step: int) -> SeriesExtent:
    return SeriesExtent(0.0, 1.0, first_step, last_step)


def test_grid_covers_the_steps_of_all_jobs() -> None:
    grid = CurveGrid.over({"a": extent(5, 20), "b": extent(11, 44)}, most=10)

    assert (grid.start, grid.width, grid.cells) == (5, 4, 10)
    assert grid.steps == [8, 12, 16, 20, 24, 28, 32, 36, 40, 44]


def test_few_steps_have_one_cell_each() -> None:
    assert CurveGrid.over({"a": extent(1, 3)}, most=300).steps == [1, 2, 3]
    assert CurveGrid.over({}, most=300).steps == []


def test_many_jobs_get_fewer_cells() -> None:
    jobs = {str(number): extent(1, 100_000) for number in range(1000)}

    assert 0 < 1000 * CurveGrid.over(jobs, most=300).cells <= MOST_VALUES


def test_later_attempt_replaces_what_it_repeats() -> None:
    grid = CurveGrid(start=1, width=1, cells=6)
    first = [CurveCell(1, cell, 10.0 + cell) for cell in range(5)]
    second = [CurveCell(2, cell, 20.0 + cell) for cell in (2, 3)]

    curve = grid.curve([*second, *first])

    assert curve == [10.0, 11.0, 22.0, 23.0, None, None]
    assert last_value(curve) == 23.0
    assert last_value(grid.curve([])) is None


def test_steps_without_any_value_are_left_out() -> None:
    grid = CurveGrid(start=1, width=10, cells=4)

    steps, curves = grid.curves({"a": [CurveCell(1, 0, 5.0)], "b": [CurveCell(1, 3, 7.0)]})

    assert steps == [10, 40]
    assert curves == {"a": [5.0, None], "b": [None, 7.0]}
