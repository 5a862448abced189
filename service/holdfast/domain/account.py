"""What a job has had so far: time with nodes, and what they cost.

The same sums as those of the bill, without its phases, and kept with every fact: guards ask for them at every look.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MS_PER_HOUR: Final = 3_600_000


def to_ms(at: datetime) -> int:
    """Whole milliseconds since 1970."""
    return (at - _EPOCH) // timedelta(milliseconds=1)


def ms_until(moment: datetime, now: datetime) -> int:
    """Whole milliseconds after which `moment` has come; less than 0 where it has passed."""
    return -((now - moment) // timedelta(milliseconds=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Sums over all placements that are gone, and the meter of the one that stands."""

    free_since: datetime
    """When the newest placement ended, or the job was submitted."""
    node_ms: int = 0
    paid_micros: int = 0
    placed_at: datetime | None = None
    """Since when nodes are paid for; None while none stand."""
    micros_per_hour: int = 0
    """Price of all nodes that stand; 0 while none do."""

    def opened(self, at: datetime, micros_per_hour: int) -> Account:
        """The account once nodes stand. No moment is paid for twice, whatever the launcher's clocks say."""
        return replace(self, placed_at=max(at, self.free_since), micros_per_hour=micros_per_hour)

    def closed(self, at: datetime) -> Account:
        """The account once they are gone; itself when none stood."""
        if self.placed_at is None:
            return self
        return Account(
            free_since=max(at, self.placed_at),
            node_ms=self.node_ms_by(at),
            paid_micros=self.paid_micros_by(at),
        )

    def node_ms_by(self, now: datetime) -> int:
        """Milliseconds with nodes until `now`."""
        return self.node_ms + self._standing_ms(now)

    def paid_micros_by(self, now: datetime) -> int:
        """Micro-dollars for them."""
        return self.paid_micros + self._standing_ms(now) * self.micros_per_hour // MS_PER_HOUR

    def ms_until_node_ms(self, limit_ms: int, now: datetime) -> int | None:
        """Milliseconds from `now` until there will have been nodes for so long; None while none stand."""
        return None if self.placed_at is None else limit_ms - self.node_ms_by(now)

    def ms_until_paid(self, limit_micros: int, now: datetime) -> int | None:
        """Milliseconds from `now` until so much will have been paid; None while no money runs."""
        if self.placed_at is None or not self.micros_per_hour:
            return None
        left_micros = limit_micros - self.paid_micros
        return -(-left_micros * MS_PER_HOUR // self.micros_per_hour) - self._standing_ms(now)

    def _standing_ms(self, now: datetime) -> int:
        return max(0, to_ms(now) - to_ms(self.placed_at)) if self.placed_at else 0
