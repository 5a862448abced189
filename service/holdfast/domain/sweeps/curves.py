"""One metric of several jobs on common steps, to lay its curves over each other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Self

from holdfast.domain.sweeps.median_rule import StopMode

MOST_VALUES: Final = 60_000
"""Values of all curves in one response. A lower value makes curves of large sweeps angular; a higher value makes responses of
several megabytes."""


@dataclass(frozen=True, slots=True)
class SeriesExtent:
    """The range of a series of one job."""

    low: float
    high: float
    first_step: int
    last_step: int

    def merged(self, other: Self) -> Self:
        """The range of both."""
        return type(self)(
            min(self.low, other.low),
            max(self.high, other.high),
            min(self.first_step, other.first_step),
            max(self.last_step, other.last_step),
        )

    def best(self, mode: StopMode) -> float:
        """The best value."""
        return self.low if mode is StopMode.MIN else self.high


@dataclass(frozen=True, slots=True)
class CurveCell:
    """The mean of some values of an attempt."""

    attempt: int
    cell: int
    """Number of the cell in its grid, from 0."""
    mean: float


@dataclass(frozen=True, slots=True)
class CurveGrid:
    """Consecutive ranges of steps, all of one width."""

    start: int
    width: int
    cells: int

    @classmethod
    def over(cls, extents: Mapping[str, SeriesExtent], most: int) -> Self:
        """A grid over the steps of several jobs: at most `most` cells, and fewer for many jobs."""
        if not extents:
            return cls(0, 1, 0)
        start = min(each.first_step for each in extents.values())
        steps = max(each.last_step for each in extents.values()) - start + 1
        cells = max(1, min(most, MOST_VALUES // len(extents), steps))
        width = -(-steps // cells)
        return cls(start, width, -(-steps // width))

    @property
    def steps(self) -> list[int]:
        """The last step of each cell."""
        return [self.start + (cell + 1) * self.width - 1 for cell in range(self.cells)]

    def curves(
        self, cells: Mapping[str, Sequence[CurveCell]]
    ) -> tuple[list[int], dict[str, list[float | None]]]:
        """Steps, and the values of each job at them; steps at which no job has a value are left out."""
        drawn = {job_id: self.curve(found) for job_id, found in cells.items()}
        used = sorted({each.cell for found in cells.values() for each in found})
        steps = self.steps
        values = {job_id: [curve[cell] for cell in used] for job_id, curve in drawn.items()}
        return [steps[cell] for cell in used], values

    def curve(self, cells: Iterable[CurveCell]) -> list[float | None]:
        """The values of one job, None where it has none.

        What a later attempt has repeated is left out: each attempt replaces the values from its first step on.
        """
        values: list[float | None] = [None] * self.cells
        ordered = sorted(cells, key=lambda each: (each.attempt, each.cell))
        for _, group in groupby(ordered, key=lambda each: each.attempt):
            first, *rest = group
            values[first.cell :] = [None] * (self.cells - first.cell)
            for each in (first, *rest):
                values[each.cell] = each.mean
        return values


def last_value(curve: Iterable[float | None]) -> float | None:
    """The last value of a curve; None without one."""
    return next((value for value in reversed([*curve]) if value is not None), None)
