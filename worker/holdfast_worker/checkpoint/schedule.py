"""When a checkpoint is due, and what a save costs.

Pure: the caller supplies the clock, steps and measurements.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974). With a checkpoint cost C and a
mean node lifetime M, an interval of sqrt(2 C M) wastes least. J. T. Daly, "A higher order estimate of the optimum checkpoint
interval for restart dumps", FGCS 22 (2006), gives the exact waste, which `wasted_share` computes. The interval comes
from a fixed list: `every 10 min` reads better than `every 9 min 47 s`, and the optimum is flat.

The cost of a checkpoint is the stall alone, because the upload runs beside training. The upload time and a restart add the same
to every loss at any interval, so both leave the choice unchanged.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from holdfast_worker.checkpoint.failure_rate import FailureRate
from holdfast_worker.protocol.policies import Cadence, CadenceUnit, Interval

INTERVALS_S: Final = tuple(
    60 * minutes for minutes in (1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120)
)
"""Intervals that `auto` chooses from. Finer steps change often and save little: the better
of two neighbours wastes at most 1.06 times the optimum. Intervals below the first add store requests that outweigh the
saved work. Intervals above the last cost more at an unexpected loss than they save."""

FIRST_SAVE_S: Final = 30.0
"""Time until the first save, before any measurement. A higher value risks more work; a lower
value measures the warm-up."""

HYSTERESIS: Final = 1.05
"""How much more the current interval must waste than the best one before it changes. A
higher value keeps a wrong interval; a lower value follows measurement noise."""

RETRY_S: Final = 60.0
"""Time until the retry after a failed checkpoint; it doubles with each further failure. A
higher value leaves work unsaved; a lower value interrupts training repeatedly while a store is down."""


def wasted_share(interval_s: float, stall_s: float, between_s: float) -> float:
    """Share of time without progress, with a checkpoint after each `interval_s` of training.

    Daly's exact expectation for random failures, `between_s` apart on average: 1 - tau / (M e^(R/M) (e^((tau + C)/M) - 1)).
    R is 0 here, because a restart scales the waste of every interval alike.
    """
    exponent = (interval_s + stall_s) / between_s
    # e^-x / (1 - e^-x) replaces 1 / (e^x - 1), which overflows if nodes last much shorter than the interval.
    return 1 - interval_s / between_s * math.exp(-exponent) / -math.expm1(-exponent)


def optimal_interval(
    stall_s: float, durable_s: float, between_s: float, present_s: int | None = None
) -> int:
    """The interval in seconds that wastes least, or the present one while it is about as good.

    Intervals below `durable_s` are excluded: a save would be due before the previous one is durable. If all are, the last
    one is returned, and a due save waits for the running one.
    """
    intervals = [interval for interval in INTERVALS_S if interval >= durable_s] or [INTERVALS_S[-1]]
    best = min(intervals, key=lambda interval: wasted_share(interval, stall_s, between_s))
    if present_s in intervals:
        least = wasted_share(best, stall_s, between_s)
        if wasted_share(present_s, stall_s, between_s) <= HYSTERESIS * least:
            return present_s
    return best


def is_due(
    cadence: Cadence, steps_since: int, seconds_since: float, best_s: float, failures: int = 0
) -> bool:
    """Whether a save is due, given the steps and seconds since the last snapshot.

    `best_s` is the interval for `auto`. After `failures` consecutive failed saves, a retry may be due sooner.
    """
    if steps_since == 0:
        return False
    if failures and seconds_since >= retry_s(failures):
        return True
    match cadence.unit:
        case CadenceUnit.STEPS:
            return steps_since >= cadence.amount
        case CadenceUnit.SECONDS:
            return seconds_since >= cadence.amount
        case CadenceUnit.AUTO:
            return seconds_since >= best_s


def retry_s(failures: int) -> float:
    """Seconds from the last snapshot to the retry, after this many consecutive failures."""
    return RETRY_S * 2.0 ** min(failures - 1, 20)


REMEMBERED: Final = 10
"""Checkpoints that predict the next one. A higher value remembers a slow store for longer; a
lower value follows outliers."""

P90: Final = 0.9
"""Share of checkpoints that finish within the expected time. A higher value follows the
worst outlier; with a lower value, the end of a node interrupts more saves."""

THROTTLE_OVERRUN: Final = 2.0
"""A throttled upload measures the store only if it takes this many times its target
duration. A higher value misses a store that became slow; a lower value mistakes the throttle for the store's speed."""


@dataclass(frozen=True, slots=True)
class SaveCost:
    """Measured cost of one checkpoint."""

    stall_s: float
    """How long training was blocked."""
    durable_s: float
    """Time from the snapshot to the commit."""
    throttled_s: float = 0.0
    """Duration over which the upload was throttled; 0 at full speed."""

    @property
    def is_unthrottled(self) -> bool:
        """Whether the duration reflects the store: no throttle, or slower than the throttle."""
        return self.durable_s > THROTTLE_OVERRUN * self.throttled_s


class SaveCostEstimate:
    """Cost estimate from the newest checkpoints."""

    def __init__(self) -> None:
        self._stalls: deque[float] = deque(maxlen=REMEMBERED)
        self._durables: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, cost: SaveCost) -> None:
        """Add the cost of a durable checkpoint."""
        self._stalls.append(cost.stall_s)
        if cost.is_unthrottled or not self._durables:
            self._durables.append(cost.durable_s)

    @property
    def stall_s(self) -> float:
        """Median stall; the first checkpoint is an outlier, because it allocates memory."""
        return median(self._stalls)

    @property
    def durable_s(self) -> float:
        """90th percentile of the duration at full speed; the maximum of fewer than ten checkpoints."""
        return quantile(self._durables, P90)


def quantile(numbers: Sequence[float], share: float) -> float:
    """The smallest of the numbers that is at least as large as the given share of them."""
    return sorted(numbers)[math.ceil(share * len(numbers)) - 1]


class CheckpointSchedule:
    """When the next checkpoint is due. Only rank 0 uses it.

    The writer thread updates it while the training thread reads it, so each attribute is replaced as a whole.
    """

    def __init__(self, cadence: Cadence) -> None:
        self._cadence = cadence
        self._costs = SaveCostEstimate()
        self.durable_s: float | None = None
        """Expected duration of a checkpoint at full speed; None before the first durable one."""
        self.interval: Interval | None = None
        """The interval of `auto`; None before the first durable checkpoint and with any other
        cadence."""

    def observe(self, cost: SaveCost, survival: FailureRate) -> bool:
        """Add the cost of a durable checkpoint; return whether the `auto` interval changed."""
        self._costs.add(cost)
        self.durable_s = self._costs.durable_s
        if self._cadence.unit is not CadenceUnit.AUTO:
            return False
        present = self.interval
        stall_s, durable_s, between_s = self._costs.stall_s, self.durable_s, survival.mtbf_s
        interval_s = optimal_interval(
            stall_s, durable_s, between_s, present.interval_s if present else None
        )
        self.interval = Interval(
            interval_s=interval_s,
            stall_ms=round(stall_s * 1000),
            durable_ms=round(durable_s * 1000),
            between_failures_s=round(between_s),
            losses=survival.losses,
        )
        return present is None or present.interval_s != interval_s

    def is_due(self, steps_since: int, seconds_since: float, failures: int) -> bool:
        """Whether a save is due, given the last snapshot and the consecutive failed saves."""
        best_s = self.interval.interval_s if self.interval else FIRST_SAVE_S
        return is_due(self._cadence, steps_since, seconds_since, best_s, failures)
