"""How long nodes last, from a few that were lost: a rate with its interval, and a survival curve. Pure.

The interval is exact (F. Garwood, Fiducial limits for the Poisson distribution, Biometrika 28, 1936): for `k` events the
lower end is the mean of which `k` or more are seen with a chance of (1 - c) / 2, and the upper end that of which `k` or
fewer are. The curve is that of Kaplan and Meier (Nonparametric estimation from incomplete observations, JASA 53, 1958):
who left otherwise counts as long as he was there, and no longer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

CONFIDENCE: Final = 0.9
FEWEST: Final = 5
"""Events below which no rate is told. Smaller: an interval over a factor of ten, which people read as a figure."""
_HALVINGS: Final = 60


@functools.lru_cache(4096)
def poisson_interval(count: int) -> tuple[float, float]:
    """The mean numbers of events between which the truth lies, nine times in ten, where so many were seen."""
    tail = (1 - CONFIDENCE) / 2
    # At these ends the tails are far smaller than what is looked for, whatever the count.
    top = count + 10 * math.sqrt(count + 1) + 10
    high = _where(lambda mean: _at_most(count, mean) <= tail, 0.0, top)
    low = _where(lambda mean: 1 - _at_most(count - 1, mean) >= tail, 0.0, top) if count else 0.0
    return low, high


def _where(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The point from which on it holds, by bisection."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return (low + high) / 2


def _at_most(count: int, mean: float) -> float:
    """The chance of `count` events or fewer where so many are to be expected; summed from the side where terms shrink."""
    if count < 0 or mean <= 0:
        return 0.0 if count < 0 else 1.0
    is_below = count < mean
    n = count if is_below else count + 1
    term = math.exp(n * math.log(mean) - mean - math.lgamma(n + 1))
    total = 0.0
    while term > total * 1e-17 and n >= 0:
        total += term
        if is_below:
            term, n = term * n / mean, n - 1
        else:
            n += 1
            term *= mean / n
    return total if is_below else 1 - total


@dataclass(frozen=True, slots=True)
class SurvivalPoint:
    """A point of a survival curve."""

    minutes: int
    share: float
    """Of placements that last longer than this, 0 to 1."""
    at_risk: int
    """Placements that had stood for so long when it came."""
    taken: int
    """How many of them were taken then."""


def survival(ended: Iterable[tuple[int, int, int]]) -> list[SurvivalPoint]:
    """The curve, of minutes, placements that were taken after so long, and those that stood or left otherwise then."""
    times = sorted(ended)
    at_risk = sum(taken + other for _, taken, other in times)
    share, steps = 1.0, list[SurvivalPoint]()
    for minutes, taken, other in times:
        if taken:
            share *= 1 - taken / at_risk
            steps.append(SurvivalPoint(minutes, share, at_risk, taken))
        at_risk -= taken + other
    return steps


def mean_minutes(ended: Iterable[tuple[int, int, int]]) -> float | None:
    """Minutes from one that was taken to the next, if the rate were the same at every age; None below `FEWEST`.

    All the time that placements have stood, whatever became of them, for each that was taken: of all exponential laws, the
    one with this mean makes what was seen the likeliest. `ended` is that of `survival`.
    """
    stood = taken_count = 0
    for minutes, taken, other in ended:
        stood += minutes * (taken + other)
        taken_count += taken
    return stood / taken_count if taken_count >= FEWEST and stood else None
