"""Costs: what checkpoints have taken, and what the next one is expected to take. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

REMEMBERED: Final = 10
"""Checkpoints that the next one is judged by. More remembers a store that was slow yesterday, fewer is ruled by one of them."""

NINE_IN_TEN: Final = 0.9
"""Share of checkpoints that take no longer than expected. Larger goes by the single worst, smaller is cut off by the end of a
node more often."""

OVERRUN: Final = 2.0
"""How many times as long as its pace a checkpoint must take to show how fast the store is. Larger does not notice one that has
become slow, smaller takes the pace itself for the speed of the store."""


@dataclass(frozen=True, slots=True)
class Cost:
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


class Costs:
    """What the newest checkpoints have taken."""

    def __init__(self) -> None:
        self._stalls: deque[float] = deque(maxlen=REMEMBERED)
        self._durables: deque[float] = deque(maxlen=REMEMBERED)

    def note(self, cost: Cost) -> None:
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
