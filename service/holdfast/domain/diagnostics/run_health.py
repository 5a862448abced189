"""Run health: rules on runtime metrics and logged series. Pure.

Each finding contains the numbers behind it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from statistics import linear_regression, median
from typing import Final

from holdfast_worker.protocol.reports import RuntimeMetricName

from holdfast.domain.diagnostics.known_failures import FailurePattern
from holdfast.domain.jobs.reports import Point

MIN_POINTS: Final = 4
"""Points of a metric before rules apply. A lower value judges a run by its first seconds; a higher value delays findings."""
COMMUNICATION: Final = 0.2
"""Share of step time spent waiting for gradients of other ranks above which the network is called slow."""
LOADING: Final = 0.2
"""Share of step time spent waiting for data above which loading is called slow."""
UTILIZATION: Final = 0.6
"""GPU utilization up to which a GPU is called idle."""
GROWTH: Final = 0.2
"""Growth relative to the initial memory above which it is called a leak. A lower value flags caches; a higher value detects leaks late."""
MIN_R_SQUARED: Final = 0.9
"""Minimum R² of a linear fit. A lower value flags a jump at an evaluation as a leak; a higher value misses noisy leaks."""
EXPLODING_RATIO: Final = 100.0
"""Multiple of the median gradient norm that counts as exploding."""

_LOSS: Final = re.compile(r"(?:^|[/_.\s-])loss(?:$|[/_.\s-])", re.IGNORECASE)
_NORM: Final = re.compile(r"grad(?:ient)?s?[/_.\s-]*norm", re.IGNORECASE)

Finding = tuple[FailurePattern, int, str]
"""A failure pattern, the attempt, and the numbers as text."""


def findings(points: Sequence[Point]) -> Iterator[Finding]:
    """Findings in the series of the newest attempt; `points` are oldest first, as stored."""
    newest = [point for point in points if point.attempt == points[-1].attempt]
    if not newest:
        return
    attempt = newest[0].attempt
    for pattern, text in (*_slow_parts(newest), *_leaks(newest), *_diverged(newest)):
        yield pattern, attempt, text


def _slow_parts(points: Sequence[Point]) -> Iterator[tuple[FailurePattern, str]]:
    waits = _recent_median(points, RuntimeMetricName.COMMUNICATION)
    if waits is not None and waits > COMMUNICATION:
        yield FailurePattern.SLOW_NETWORK, f"{waits:.0%} of step time"
    loads = _recent_median(points, RuntimeMetricName.LOADING)
    if loads is not None and loads > LOADING:
        yield FailurePattern.SLOW_LOADING, f"{loads:.0%} of step time"
    works = _recent_median(points, RuntimeMetricName.GPU_UTILIZATION)
    if works is not None and works <= UTILIZATION:
        yield FailurePattern.IDLE_GPU, f"the GPU is busy {works:.0%} of the time"


def _leaks(points: Sequence[Point]) -> Iterator[tuple[FailurePattern, str]]:
    for metric, owner in (
        (RuntimeMetricName.HOST_MEMORY, "process"),
        (RuntimeMetricName.GPU_MEMORY, "GPU"),
    ):
        curve = [(point.step, value) for point, value in _series(points, metric) if point.step > 0]
        # The first quarter contains allocations of the startup.
        curve = curve[len(curve) // 4 :]
        if len(curve) < 2 * MIN_POINTS or (grown := _growth(curve)) is None:
            continue
        first, last = grown
        yield (
            FailurePattern.LEAK,
            f"memory of the {owner}: {_gib(first)} at step {curve[0][0]:,}, {_gib(last)} at step {curve[-1][0]:,}",
        )


def _growth(curve: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """First and last value of a linear fit; None unless it grows and fits the series."""
    steps, values = [float(step) for step, _ in curve], [value for _, value in curve]
    if steps[0] == steps[-1]:
        return None
    slope, intercept = linear_regression(steps, values)
    first, last = intercept + slope * steps[0], intercept + slope * steps[-1]
    mean = math.fsum(values) / len(values)
    whole = math.fsum((value - mean) ** 2 for value in values)
    rest = math.fsum((v - intercept - slope * s) ** 2 for s, v in zip(steps, values, strict=True))
    is_straight = whole > 0 and 1 - rest / whole >= MIN_R_SQUARED
    return (first, last) if is_straight and last - first > GROWTH * max(first, 1.0) else None


def _diverged(points: Sequence[Point]) -> Iterator[tuple[FailurePattern, str]]:
    names = {name for point in points for name in point.values}
    for name in sorted(filter(_LOSS.search, names)):
        logged = [(point.step, point.values[name]) for point in points if name in point.values]
        if logged[-1][1] is None:
            since = next(step for step, value in logged if value is None)
            yield FailurePattern.NOT_FINITE, f"{name} has not been finite since step {since:,}"
    for name in sorted(filter(_NORM.search, names)):
        curve = [(p.step, v) for p, v in _series(points, name)]
        if len(curve) < MIN_POINTS:
            continue
        usual = median(value for _, value in curve)
        step, worst = max(curve[-MIN_POINTS:], key=lambda item: item[1])
        if usual > 0 and worst > EXPLODING_RATIO * usual:
            yield (
                FailurePattern.EXPLODING,
                f"{name} is {worst:.3g} at step {step:,}; its median is {usual:.3g}",
            )


def _recent_median(points: Sequence[Point], metric: RuntimeMetricName) -> float | None:
    """Median of the newer half of a metric's points; None if there are too few."""
    values = [value for _, value in _series(points, metric)]
    newer = values[len(values) // 2 :]
    return median(newer) if len(newer) >= MIN_POINTS else None


def _series(points: Sequence[Point], name: str) -> list[tuple[Point, float]]:
    return [(p, value) for p in points if (value := p.values.get(name)) is not None]


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
