"""Medians and ranges of repeated measurements, and goals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self


@dataclass(frozen=True, slots=True)
class Figure:
    """Median and range of a repeated measurement."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """Summarize values; None without any."""
        if not values:
            return None
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of all candidates."""

    name: str
    unit: str
    digits: int
    of: Callable[[Mapping[str, Any]], list[float]]
    """Its values in the result of a trial."""
    more_is_better: bool = False


def _warm(
    key: str, scale: Callable[[float, float], float]
) -> Callable[[Mapping[str, Any]], list[float]]:
    """Values of all saves but the first one, scaled by the size of the state."""
    return lambda results: [scale(v, results["size_bytes"]) for v in results[key][1:]]


def _cold(
    key: str, scale: Callable[[float, float], float]
) -> Callable[[Mapping[str, Any]], list[float]]:
    return lambda results: [scale(v, results["size_bytes"]) for v in results[key][:1]]


def _all(
    key: str, scale: Callable[[float, float], float]
) -> Callable[[Mapping[str, Any]], list[float]]:
    return lambda results: [scale(v, results["size_bytes"]) for v in results[key]]


def _rate(seconds: float, size: float) -> float:
    return size / 1e6 / seconds


def _per_gb(seconds: float, size: float) -> float:
    return seconds / (size / 1e9)


def _share(extra: float, size: float) -> float:
    return extra / size


def _plain(value: float, _size: float) -> float:
    return value


STALL: Final = Measure("stall", "s", 3, _warm("stall_s", _plain))
DURABLE: Final = Measure("durable", "MB/s", 0, _warm("durable_s", _rate), more_is_better=True)
CPU: Final = Measure("CPU", "s/GB", 2, _warm("cpu_s", _per_gb))
MEMORY: Final = Measure("memory", "x share", 2, _warm("extra_bytes", _share))
RESTORE: Final = Measure("restore", "MB/s", 0, _all("restore_s", _rate), more_is_better=True)
RESTORE_CPU: Final = Measure("restore CPU", "s/GB", 2, _all("restore_cpu_s", _per_gb))
RESTORE_MEMORY: Final = Measure("restore memory", "x share", 2, _all("restore_extra_bytes", _share))
TIDY: Final = Measure("tidying CPU", "s/GB", 2, _warm("tidy_cpu_s", _per_gb))
FIRST_STALL: Final = Measure("first stall", "s", 2, _cold("stall_s", _plain))
FIRST: Final = Measure("first durable", "MB/s", 0, _cold("durable_s", _rate), more_is_better=True)
MEASURES: Final = (
    STALL,
    DURABLE,
    CPU,
    MEMORY,
    RESTORE,
    RESTORE_CPU,
    RESTORE_MEMORY,
    FIRST_STALL,
    FIRST,
    TIDY,
)

Figures = Mapping[tuple[str, Measure], Figure]
"""By candidate and measure."""


def digest(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[tuple[str, Measure], Figure]:
    """Summarize the results of the trials of each candidate."""
    found: dict[tuple[str, Measure], Figure] = {}
    for name, trials in results.items():
        for measure in MEASURES:
            figure = Figure.of([value for trial in trials for value in measure.of(trial)])
            if figure:
                found[name, measure] = figure
    return found


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for a measure of Holdfast, relative to the best of other candidates."""

    text: str
    measure: Measure
    against: tuple[str, ...]
    """The other candidates; without any, the goal is an absolute limit."""
    limit: float

    def describe(self, figures: Figures) -> str | None:
        """Describe the result; None if a value was not measured."""
        holdfast = figures.get(("ours", self.measure))
        others = [f.median for n in self.against if (f := figures.get((n, self.measure)))]
        if holdfast is None or (self.against and not others):
            return None
        better = max if self.measure.more_is_better else min
        ratio = holdfast.median / better(others) if others else holdfast.median
        met = ratio >= self.limit if self.measure.more_is_better else ratio <= self.limit
        sign = ">=" if self.measure.more_is_better else "<="
        times = "x" if others else f" {self.measure.unit}"
        return f"{'met ' if met else 'MISSED'}  {self.text}: {ratio:.2f}{times} (goal {sign} {self.limit}{times})"


S3FS: Final = ("s3fs", "s3fs-cached")
S3TORCH: Final = ("s3torch", "s3torch-best")


def goals(size: str) -> tuple[Goal, ...]:
    """The goals at a size."""
    return (
        Goal("durable beside the best of DCP + s3fs", DURABLE, S3FS, 4.0),
        Goal("durable beside the best of DCP + s3torchconnector", DURABLE, S3TORCH, 2.5),
        Goal("stall beside the best staging of DCP", STALL, S3FS + S3TORCH, 1.1),
        Goal("stall beside a plain memcpy on one thread", STALL, ("bare",), 1.3),
        Goal("CPU of a save", CPU, (), 0.8),
        Goal("extra memory beside the rank's share", MEMORY, (), 1.05),
        Goal("restore beside the best of DCP + s3torchconnector", RESTORE, S3TORCH, 3.0),
        Goal("durable beside raw sockets", DURABLE, ("bare",), 0.7),
        # A small state ends before connections and metadata have paid off.
        Goal("restore beside raw sockets", RESTORE, ("bare",), 0.6 if size == "2" else 0.5),
    )
