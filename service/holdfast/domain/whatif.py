"""What a loss costs, and how often to save, before anything runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HOURS_PER_DAY: Final = 24
USUAL_S: Final[Mapping[str, tuple[int, int]]] = {
    "research": (2 * 3600, 4 * 3600),
    "production": (30 * 60, 60 * 60),
    "spot": (15 * 60, 30 * 60),
}
"""How often people save by habit: from, and to."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a failure takes, without checkpoints and with."""

    hours_without: float
    micros_without: int
    hours_with: float
    """At most: what was made since the newest checkpoint."""
    micros_with: int


def loss(micros_per_day: int, at_hour: float, every_hours: float | None) -> Loss:
    """What a failure after so many hours takes from a job that saves so often; None: never."""
    kept = at_hour if every_hours is None else min(at_hour, every_hours)
    return Loss(
        hours_without=at_hour,
        micros_without=_paid(micros_per_day, at_hour),
        hours_with=kept,
        micros_with=_paid(micros_per_day, kept),
    )


def rough(micros: int) -> int:
    """The same as people say it: rounded down to a half of its leading power of ten."""
    unit: int = max(1, 10 ** (len(str(micros)) - 1) // 2)
    return micros // unit * unit


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often to save."""

    best_s: float
    """Young's optimum."""
    waste: float
    """The share of all time that is no progress then: what saving stops, and what losses take."""


def cadence(cost_s: float, between_failures_s: float) -> Cadence:
    """How often to save where a checkpoint stops training for so long, and nodes last so long on average.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974). Workers choose by the exact waste, which
    differs where a checkpoint costs much of what nodes last.
    """
    best_s = math.sqrt(2 * cost_s * between_failures_s)
    return Cadence(best_s, share_wasted(best_s, cost_s, between_failures_s))


def share_wasted(every_s: float, cost_s: float, between_failures_s: float) -> float:
    """The share of all time that is no progress with a checkpoint so often, at most all of it."""
    return min(1.0, cost_s / (every_s + cost_s) + every_s / 2 / between_failures_s)


def _paid(micros_per_day: int, hours: float) -> int:
    return round(micros_per_day * hours / HOURS_PER_DAY)
