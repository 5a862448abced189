"""Survival statistics of spot nodes: preemption rate and survival curve. Pure.

The interval is exact (F. Garwood, Fiducial limits for the Poisson distribution, Biometrika 28, 1936): for `k` events its lower
end is the mean at which `k` or more occur with probability (1 - c) / 2, its upper end that for `k` or fewer. The curve is the
Kaplan-Meier estimate (Nonparametric estimation from incomplete observations, JASA 53, 1958): placements that ended otherwise are
censored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

CONFIDENCE: Final = 0.9
MIN_PREEMPTIONS: Final = 5
"""Events needed for a rate. A lower value shows a rate whose interval spans a factor of ten."""
_HALVINGS: Final = 60


@functools.lru_cache(4096)
def poisson_interval(count: int) -> tuple[float, float]:
    """The 90 % confidence interval of the mean for this number of events."""
    tail = (1 - CONFIDENCE) / 2
    # The tails at these ends are negligible for any count.
    top = count + 10 * math.sqrt(count + 1) + 10
    high = _bisect(lambda mean: _poisson_cdf(count, mean) <= tail, 0.0, top)
    low = (
        _bisect(lambda mean: 1 - _poisson_cdf(count - 1, mean) >= tail, 0.0, top) if count else 0.0
    )
    return low, high


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The point at which a monotonic condition becomes true, by bisection."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return (low + high) / 2


def _poisson_cdf(count: int, mean: float) -> float:
    """Probability of at most `count` Poisson events; summed from the side with shrinking terms."""
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
    """Share of placements that last longer, 0 to 1."""
    at_risk: int
    """Placements at risk at this time."""
    preempted: int
    """Placements preempted at this time."""


def survival(ended: Iterable[tuple[int, int, int]]) -> list[SurvivalPoint]:
    """Kaplan-Meier curve from (minutes, preempted, censored)."""
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
    """Mean time between preemptions in minutes at a constant rate; None below `MIN_PREEMPTIONS`.

    Total placement time divided by the number of preemptions: the maximum likelihood estimate of an exponential distribution. `ended`
    is that of `survival`.
    """
    minutes_total = taken_count = 0
    for minutes, taken, other in ended:
        minutes_total += minutes * (taken + other)
        taken_count += taken
    return minutes_total / taken_count if taken_count >= MIN_PREEMPTIONS and minutes_total else None
