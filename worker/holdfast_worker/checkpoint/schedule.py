"""When a checkpoint is due. Pure: the clock, the steps and the measurements are the caller's.

How often is best was asked first by J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17
(1974): with a checkpoint that costs C and nodes that last M on average, an interval of sqrt(2 C M) wastes least. J. T. Daly,
"A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006), gives the exact waste, which
`waste` is, and by which an interval is chosen here: of a ladder, as people read `every 10 min` and not `every 9 min 47 s`,
and as the optimum is flat.

What a checkpoint costs is the stall alone, as the upload runs beside the training. How long the upload takes adds the same
to every loss, whatever the interval; so does a restart. Both leave the choice as it is.

Costs: what checkpoints have taken, and what the next one is expected to take. Pure.

The tempo: how often a run saves, as its job file says, or as its checkpoints and its nodes have shown.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from holdfast_worker.checkpoint.failure_rate import FailureRate
from holdfast_worker.protocol.policies import Cadence, Interval, Rhythm

LADDER_S: Final = tuple(
    60 * minutes for minutes in (1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120)
)
"""Intervals that `auto` chooses from. Finer steps change often and save nothing: between two neighbours, the better one wastes
at most 1.06 times what the optimum would. Shorter ones than the first ask a store more often than the work is worth; with
longer ones than the last, a loss that the estimate did not see coming costs more than all that they save."""

FIRST_SAVE_S: Final = 30.0
"""Before anything was measured. Later risks more than the first minute, earlier measures a warm-up."""

CLEARLY: Final = 1.05
"""How much more the present interval must waste than the best for it to be changed. Larger holds on to what is wrong; smaller
and it goes up and down with the noise of every measurement."""

RETRY_S: Final = 60.0
"""After a checkpoint that failed, and twice as long after each further one. Longer leaves work unsaved that could be safe;
shorter stops training again and again for a store that is down."""


def waste(interval_s: float, stall_s: float, between_s: float) -> float:
    """Share of all time that is no progress, with a checkpoint after each `interval_s` of training.

    Daly's exact expectation where failures come at random, `between_s` apart on average:
    1 - tau / (M e^(R/M) (e^((tau + C)/M) - 1)), here with R = 0, since a restart multiplies it for every interval alike.
    """
    exponent = (interval_s + stall_s) / between_s
    # e^-x / (1 - e^-x) for 1 / (e^x - 1), which overflows where nodes last much shorter than the interval.
    return 1 - interval_s / between_s * math.exp(-exponent) / -math.expm1(-exponent)


def optimal_interval(
    stall_s: float, durable_s: float, between_s: float, present_s: int | None = None
) -> int:
    """The rung of the ladder that wastes least, in seconds, or the present one as long as it is about as good.

    None is shorter than what a checkpoint takes to be durable: a save would be due before the last one is through. The last
    rung is, where nothing is long enough; then the save under way is waited for.
    """
    rungs = [rung for rung in LADDER_S if rung >= durable_s] or [LADDER_S[-1]]
    best = min(rungs, key=lambda rung: waste(rung, stall_s, between_s))
    if present_s in rungs:
        least = waste(best, stall_s, between_s)
        if waste(present_s, stall_s, between_s) <= CLEARLY * least:
            return present_s
    return best


def is_due(
    cadence: Cadence, steps_since: int, seconds_since: float, best_s: float, failures: int = 0
) -> bool:
    """Whether it is time, so many steps and seconds after the last snapshot.

    `best_s` is what `auto` goes by, and `failures` of the newest checkpoints in a row have failed: then one is due sooner.
    """
    if steps_since == 0:
        return False
    if failures and seconds_since >= retry_s(failures):
        return True
    match cadence.rhythm:
        case Rhythm.STEPS:
            return steps_since >= cadence.amount
        case Rhythm.SECONDS:
            return seconds_since >= cadence.amount
        case Rhythm.AUTO:
            return seconds_since >= best_s


def retry_s(failures: int) -> float:
    """How long to let a store be after so many failures in a row, from the snapshot of the last on."""
    return RETRY_S * 2.0 ** min(failures - 1, 20)


REMEMBERED: Final = 10
"""Checkpoints that the next one is judged by. More remembers a store that was slow yesterday, fewer is ruled by one of them."""

NINE_IN_TEN: Final = 0.9
"""Share of checkpoints that take no longer than expected. Larger goes by the single worst, smaller is cut off by the end of a
node more often."""

OVERRUN: Final = 2.0
"""How many times as long as its pace a checkpoint must take to show how fast the store is. Larger does not notice one that has
become slow, smaller takes the pace itself for the speed of the store."""


@dataclass(frozen=True, slots=True)
class SaveCost:
    """What one checkpoint took."""

    stall_s: float
    """How long training stood still."""
    durable_s: float
    """From the snapshot until the commit."""
    paced_s: float = 0.0
    """Over how long its upload was spread on purpose; 0 at full speed."""

    @property
    def shows_speed(self) -> bool:
        """Whether it says how long one takes that is not held back: it was none, or the store was what it waited for."""
        return self.durable_s > OVERRUN * self.paced_s


class SaveCostEstimate:
    """What the newest checkpoints have taken."""

    def __init__(self) -> None:
        self._stalls: deque[float] = deque(maxlen=REMEMBERED)
        self._durables: deque[float] = deque(maxlen=REMEMBERED)

    def note(self, cost: SaveCost) -> None:
        """One more is durable."""
        self._stalls.append(cost.stall_s)
        if cost.shows_speed or not self._durables:
            self._durables.append(cost.durable_s)

    @property
    def stall_s(self) -> float:
        """What a checkpoint costs: the median, as the first one, which makes room in memory, costs more than any other."""
        return median(self._stalls)

    @property
    def durable_s(self) -> float:
        """What a checkpoint takes at full speed, nine times in ten or less; of fewer than ten, the slowest."""
        return quantile(self._durables, NINE_IN_TEN)


def quantile(numbers: Sequence[float], share: float) -> float:
    """The smallest of these numbers that is no less than such a share of them."""
    return sorted(numbers)[math.ceil(share * len(numbers)) - 1]


class CheckpointSchedule:
    """When the next checkpoint is due. The first rank's learns; of others', nothing is asked.

    The thread that saves learns while that of the training asks: each attribute is replaced as a whole.
    """

    def __init__(self, cadence: Cadence) -> None:
        self._cadence = cadence
        self._costs = SaveCostEstimate()
        self.durable_s: float | None = None
        """What a checkpoint is expected to take at full speed; None before one was durable."""
        self.interval: Interval | None = None
        """What `auto` goes by; None before a checkpoint was durable, and with any other cadence."""

    def observe(self, cost: SaveCost, survival: FailureRate) -> bool:
        """A checkpoint is durable. Whether `auto` goes by another interval from now on."""
        self._costs.note(cost)
        self.durable_s = self._costs.durable_s
        if self._cadence.rhythm is not Rhythm.AUTO:
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
        """Whether it is time, after the last snapshot and so many checkpoints in a row that have failed."""
        best_s = self.interval.interval_s if self.interval else FIRST_SAVE_S
        return is_due(self._cadence, steps_since, seconds_since, best_s, failures)
