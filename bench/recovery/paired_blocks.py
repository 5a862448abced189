"""Comparison of two settings that alternate in short blocks of one training. Pure.

Blocks are in the order off, on, on, off, and so on, so that neither setting comes first more often: a machine that gets slower or faster shifts
both. Each pair of neighbors gives one difference. Its interval is a percentile bootstrap over the pairs.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

RESAMPLES: Final = 4000
"""Resamples of the bootstrap. A lower value makes the ends of the interval random; a higher value takes longer."""
CONFIDENCE: Final = 0.95
MIN_PAIRS: Final = 6
"""Pairs without which no interval is given: its ends would be the extremes of a few values."""

Average = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Block:
    """Steps in a row with the same setting."""

    is_on: bool
    values: Sequence[float]
    """One for each step, such as its duration."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What steps take more with the setting, as a share."""

    share: float
    """The median over all pairs."""
    low: float
    high: float
    """The interval of this median."""
    pairs: int

    @classmethod
    def of(cls, blocks: Sequence[Block], average: Average, seed: int = 0) -> Self:
        """Compare the averages of the steps of paired blocks.

        Raises:
            ValueError: there are too few pairs.
        """
        shares = [average(on.values) / average(off.values) - 1 for off, on in paired(blocks)]
        if len(shares) < MIN_PAIRS:
            raise ValueError(
                f"{len(shares)} pairs of blocks are too few: a longer run has at least {MIN_PAIRS}"
            )
        chance = random.Random(seed)
        medians = sorted(
            statistics.median(chance.choices(shares, k=len(shares))) for _ in range(RESAMPLES)
        )
        cut = round(RESAMPLES * (1 - CONFIDENCE) / 2)
        return cls(statistics.median(shares), medians[cut], medians[-1 - cut], len(shares))

    def __str__(self) -> str:
        return f"{self.share:+.2%}, {CONFIDENCE:.0%} interval {self.low:+.2%} to {self.high:+.2%} ({self.pairs} pairs)"


def paired(blocks: Sequence[Block]) -> list[tuple[Block, Block]]:
    """Pairs of neighbors: the one without the setting, and the one with it."""
    halves = zip(blocks[::2], blocks[1::2], strict=False)
    return [(two, one) if one.is_on else (one, two) for one, two in halves]


def blocks_of(values: Sequence[float], settings: Sequence[int]) -> list[Block]:
    """Divide steps into blocks, given the number of the block of each step."""
    found = []
    for number, steps in itertools.groupby(
        zip(settings, values, strict=True), lambda step: step[0]
    ):
        found.append(Block(is_on(number), [value for _, value in steps]))
    return found


def is_on(number: int) -> bool:
    """Whether a block of this number, from 0, has the setting."""
    return number % 4 in {1, 2}
