"""Rates: the price of nodes over time, and the single rounding rule for amounts.

Prices are integer micro-dollars per hour and times are integer milliseconds, so an accrued amount is an exact integer product. It
is divided by the milliseconds of an hour and rounded down once; the cost of a span is the difference of two such sums. Adjacent
spans therefore add up to the whole however they are split.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
MS_PER_HOUR: Final = 3_600_000


def to_ms(at: datetime) -> int:
    """Whole milliseconds since 1970."""
    return (at - _EPOCH) // _MS


def to_time(ms: int) -> datetime:
    """Time from milliseconds since 1970."""
    return _EPOCH + ms * _MS


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """Price of nodes as steps over time."""

    steps: tuple[tuple[int, int], ...]
    """Milliseconds since 1970 and micro-dollars per hour from then on; in order of time, at least one."""

    @classmethod
    def flat(cls, at: datetime, micros_per_hour: int) -> RateSchedule:
        """A constant price."""
        return cls(((to_ms(at), micros_per_hour),))

    def with_price_change(self, at: datetime, micros_per_hour: int) -> RateSchedule:
        """The schedule with one more change, in any order of arrival.

        The last change for a moment applies. A change at or before the start of the nodes is
        ignored: their first price applies.
        """
        at_ms = to_ms(at)
        if at_ms <= self.steps[0][0]:
            return self
        others = (step for step in self.steps if step[0] != at_ms)
        return RateSchedule(tuple(sorted((*others, (at_ms, micros_per_hour)))))

    def with_node_change(self, at: datetime, micros_per_hour: int) -> RateSchedule:
        """The schedule after nodes were lost or replaced.

        These arrive in order. A change before the start applies from the start. Later price changes
        that arrived before it concerned nodes that were gone, and are dropped.
        """
        at_ms = max(to_ms(at), self.steps[0][0])
        before = (step for step in self.steps if step[0] < at_ms)
        return RateSchedule((*before, (at_ms, micros_per_hour)))

    def micros_per_hour_at(self, at_ms: int) -> int:
        """The price at a time; before all changes, the first price."""
        return next(
            (micros for ms, micros in reversed(self.steps) if ms <= at_ms), self.steps[0][1]
        )

    @property
    def newest_micros_per_hour(self) -> int:
        """The price after all known changes."""
        return self.steps[-1][1]

    def accrue(self, begin_ms: int, end_ms: int) -> int:
        """Amount accrued in a span, unrounded, in micro-dollars per hour times milliseconds."""
        if end_ms <= begin_ms:
            return 0
        bounds = [begin_ms, *(ms for ms, _ in self.steps if begin_ms < ms < end_ms), end_ms]
        return sum(
            (after - before) * self.micros_per_hour_at(before)
            for before, after in itertools.pairwise(bounds)
        )

    def micros_at(self, begin_ms: int, moments: Iterable[int]) -> list[int]:
        """`micros` at several times, for callers that split a span."""
        if len(self.steps) > 1:
            return [self.micros(begin_ms, at_ms) for at_ms in moments]
        rate = self.steps[0][1]
        return [(at_ms - begin_ms) * rate // MS_PER_HOUR for at_ms in moments]

    def micros(self, begin_ms: int, end_ms: int) -> int:
        """Micro-dollars paid by `end_ms` for nodes provisioned at `begin_ms`."""
        return self.accrue(begin_ms, end_ms) // MS_PER_HOUR
