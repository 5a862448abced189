"""What the vitals of a run say: rules on curves, each with the numbers that it follows from. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from statistics import linear_regression, median
from typing import Final

from holdfast_worker.protocol.reports import Vital

from holdfast.domain.diagnostics.known_failures import FailurePattern
from holdfast.domain.jobs.reports import Point

FEWEST: Final = 4
"""Points of a vital before anything is said. Fewer take the first seconds of a run for all of it, more keep silent for longer."""
COMMUNICATION: Final = 0.2
"""Of a step, from which waiting for other ranks' gradients is too much."""
LOADING: Final = 0.2
"""Of a step, from which waiting for data is."""
UTILIZATION: Final = 0.6
"""Of the time, up to which a GPU that computes is called idle."""
GROWTH: Final = 0.2
"""Of what there was at first, from which memory that grows is called a leak. Less is what caches take, more is noticed too late."""
STRAIGHT: Final = 0.9
"""Share of the growth that a line explains. Less calls a jump at an evaluation a leak, more forgives every wobble."""
EXPLODED: Final = 100.0
"""Times the usual norm of gradients."""

_LOSS: Final = re.compile(r"(?:^|[/_.\s-])loss(?:$|[/_.\s-])", re.IGNORECASE)
_NORM: Final = re.compile(r"grad(?:ient)?s?[/_.\s-]*norm", re.IGNORECASE)

Finding = tuple[FailurePattern, int, str]
"""A trouble, the attempt, and the numbers."""


def findings(points: Sequence[Point]) -> Iterator[Finding]:
    """What the curves of the newest attempt look like; `points` oldest first, as they are stored."""
    newest = [point for point in points if point.attempt == points[-1].attempt]
    if not newest:
        return
    attempt = newest[0].attempt
    for trouble, words in (*_shares(newest), *_leaks(newest), *_diverged(newest)):
        yield trouble, attempt, words


def _shares(points: Sequence[Point]) -> Iterator[tuple[FailurePattern, str]]:
    waits = _usual(points, Vital.COMMUNICATION)
    if waits is not None and waits > COMMUNICATION:
        yield FailurePattern.SLOW_NETWORK, f"{waits:.0%} of the time of a step"
    loads = _usual(points, Vital.LOADING)
    if loads is not None and loads > LOADING:
        yield FailurePattern.SLOW_LOADING, f"{loads:.0%} of the time of a step"
    works = _usual(points, Vital.GPU_UTILIZATION)
    if works is not None and works <= UTILIZATION:
        yield FailurePattern.IDLE_GPU, f"its GPU computes {works:.0%} of the time"


def _leaks(points: Sequence[Point]) -> Iterator[tuple[FailurePattern, str]]:
    for vital, whose in ((Vital.HOST_MEMORY, "process"), (Vital.GPU_MEMORY, "GPU")):
        curve = [(point.step, value) for point, value in _curve(points, vital) if point.step > 0]
        # What a run builds up as it begins is not what it goes on to take.
        curve = curve[len(curve) // 4 :]
        if len(curve) < 2 * FEWEST or (grown := _growth(curve)) is None:
            continue
        first, last = grown
        yield (
            FailurePattern.LEAK,
            f"memory of the {whose}: {_gib(first)} at step {curve[0][0]:,}, {_gib(last)} at step {curve[-1][0]:,}",
        )


def _growth(curve: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """Where a line through a curve begins and ends; None unless the line grows, and is the curve."""
    steps, values = [float(step) for step, _ in curve], [value for _, value in curve]
    if steps[0] == steps[-1]:
        return None
    slope, intercept = linear_regression(steps, values)
    first, last = intercept + slope * steps[0], intercept + slope * steps[-1]
    mean = math.fsum(values) / len(values)
    whole = math.fsum((value - mean) ** 2 for value in values)
    rest = math.fsum((v - intercept - slope * s) ** 2 for s, v in zip(steps, values, strict=True))
    is_straight = whole > 0 and 1 - rest / whole >= STRAIGHT
    return (first, last) if is_straight and last - first > GROWTH * max(first, 1.0) else None


def _diverged(points: Sequence[Point]) -> Iterator[tuple[FailurePattern, str]]:
    names = {name for point in points for name in point.values}
    for name in sorted(filter(_LOSS.search, names)):
        told = [(point.step, point.values[name]) for point in points if name in point.values]
        if told[-1][1] is None:
            since = next(step for step, value in told if value is None)
            yield FailurePattern.NOT_FINITE, f"{name} is not finite since step {since:,}"
    for name in sorted(filter(_NORM.search, names)):
        curve = [(p.step, v) for p, v in _curve(points, name)]
        if len(curve) < FEWEST:
            continue
        usual = median(value for _, value in curve)
        step, worst = max(curve[-FEWEST:], key=lambda item: item[1])
        if usual > 0 and worst > EXPLODED * usual:
            yield (
                FailurePattern.EXPLODING,
                f"{name} is {worst:.3g} at step {step:,}, and {usual:.3g} as a rule",
            )


def _usual(points: Sequence[Point], vital: Vital) -> float | None:
    """The median of the newer half; None where too few were told."""
    values = [value for _, value in _curve(points, vital)]
    newer = values[len(values) // 2 :]
    return median(newer) if len(newer) >= FEWEST else None


def _curve(points: Sequence[Point], name: str) -> list[tuple[Point, float]]:
    return [(p, value) for p in points if (value := p.values.get(name)) is not None]


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
