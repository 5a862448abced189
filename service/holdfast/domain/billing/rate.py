"""What nodes cost from moment to moment, and the one rule by which their money is rounded.

A price is an integer of micro-dollars an hour and a time is one of milliseconds, so that what was run up by a moment is
an exact number of micro-dollars times milliseconds. It is divided by the milliseconds of an hour, and rounded down, once:
the money of a span is the difference of two such sums. So spans that touch add up to the whole, however they are cut.
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
    """The moment so many milliseconds after 1970 began."""
    return _EPOCH + ms * _MS


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """The price of some nodes, from one change to the next."""

    steps: tuple[tuple[int, int], ...]
    """Milliseconds since 1970, and micro-dollars an hour from then on; in order of time, never empty."""

    @classmethod
    def flat(cls, at: datetime, micros_per_hour: int) -> RateSchedule:
        """A price that has not changed yet."""
        return cls(((to_ms(at), micros_per_hour),))

    def changed(self, at: datetime, micros_per_hour: int) -> RateSchedule:
        """The tariff with one change more, in whatever order they are told. What is told last of a moment holds.

        What is said to have changed before the nodes were there, or just then, is no change: their first price holds.
        """
        at_ms = to_ms(at)
        if at_ms <= self.steps[0][0]:
            return self
        others = (step for step in self.steps if step[0] != at_ms)
        return RateSchedule(tuple(sorted((*others, (at_ms, micros_per_hour)))))

    def micros_per_hour_at(self, at_ms: int) -> int:
        """The price at a moment; before all changes it is the first."""
        return next(
            (micros for ms, micros in reversed(self.steps) if ms <= at_ms), self.steps[0][1]
        )

    @property
    def newest_micros_per_hour(self) -> int:
        """The price after all changes that are known."""
        return self.steps[-1][1]

    def accrue(self, begin_ms: int, end_ms: int) -> int:
        """What is run up in a span, in micro-dollars an hour times milliseconds: not rounded."""
        if end_ms <= begin_ms:
            return 0
        bounds = [begin_ms, *(ms for ms, _ in self.steps if begin_ms < ms < end_ms), end_ms]
        return sum(
            (after - before) * self.micros_per_hour_at(before)
            for before, after in itertools.pairwise(bounds)
        )

    def micros_at(self, begin_ms: int, moments: Iterable[int]) -> list[int]:
        """`micros` by each of several moments, for whoever cuts a time into many spans."""
        if len(self.steps) > 1:
            return [self.micros(begin_ms, at_ms) for at_ms in moments]
        rate = self.steps[0][1]
        return [(at_ms - begin_ms) * rate // MS_PER_HOUR for at_ms in moments]

    def micros(self, begin_ms: int, end_ms: int) -> int:
        """What is paid by `end_ms` for nodes that came at `begin_ms`."""
        return self.accrue(begin_ms, end_ms) // MS_PER_HOUR
