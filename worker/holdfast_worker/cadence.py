"""When a checkpoint is due. Pure: the clock, the steps and the measurements are the caller's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from holdfast_worker.wire import Cadence, Rhythm

MEAN_TIME_BETWEEN_FAILURES_S: Final = 2 * 3600.0
"""What is assumed of spot capacity. Too long loses work at each preemption, too short stalls training for nothing;
the optimum is flat: off by four, the interval is off by two and the waste by a quarter."""

FIRST_SAVE_S: Final = 30.0
"""Before anything was measured. Later risks more than the first minute, earlier measures a warm-up."""

SHORTEST_INTERVAL_S: Final = 10.0
"""Below this, a store is asked more often than the work is worth."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What the last checkpoint took."""

    stall_s: float
    """How long training stood still."""
    durable_s: float
    """From the snapshot until the commit, at full speed."""
    size_bytes: int = 0


def interval_s(cost: Cost | None) -> float:
    """Seconds between checkpoints that waste least; `cost` is None before the first one.

    The first-order optimum of J. W. Young, "A first order approximation to the optimum checkpoint interval",
    CACM 17 (1974), refined by J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", FGCS 22 (2006): sqrt(2 * cost of a checkpoint * mean time between failures). The cost is the stall alone,
    as the upload runs beside the training; but no shorter than an upload, as they do not overlap.
    """
    if cost is None:
        return FIRST_SAVE_S
    best_s = math.sqrt(2 * cost.stall_s * MEAN_TIME_BETWEEN_FAILURES_S)
    return max(best_s, cost.durable_s, SHORTEST_INTERVAL_S)


def is_due(cadence: Cadence, steps_since: int, seconds_since: float, cost: Cost | None) -> bool:
    """Whether it is time, so many steps and seconds after the last snapshot."""
    if steps_since == 0:
        return False
    match cadence.rhythm:
        case Rhythm.STEPS:
            return steps_since >= cadence.amount
        case Rhythm.SECONDS:
            return seconds_since >= cadence.amount
        case Rhythm.AUTO:
            return seconds_since >= interval_s(cost)
