"""What a job has had so far: time with nodes, and what they cost.

The same sums as those of the bill, without its phases, and kept with every fact: guards ask for them at every look. They
are those before a provider's rules: see `holdfast.domain.rules`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.tariff import MS_PER_HOUR, Tariff, to_ms

__all__ = ["KEPT", "MS_PER_HOUR", "Account", "Meter", "ms_until", "to_ms"]

KEPT: Final = 8
"""Placements that are gone, and of which a change of price may still be told. Smaller: it comes too late, and is refused.
Bigger: they are written again with every fact."""


def ms_until(moment: datetime, now: datetime) -> int:
    """Whole milliseconds after which `moment` has come; less than 0 where it has passed."""
    return -((now - moment) // timedelta(milliseconds=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """What one placement costs."""

    attempt: int
    since: datetime
    """Since when its nodes are paid for."""
    until: datetime | None = None
    """None while they stand."""
    tariffs: tuple[Tariff, ...]
    """One for each of its groups."""

    def ms_by(self, now: datetime) -> int:
        """Milliseconds until `now`."""
        return max(0, to_ms(self.until or now) - to_ms(self.since))

    def micros_by(self, now: datetime) -> int:
        """Micro-dollars for them: each group's own sum is rounded, as people are shown it."""
        begin = to_ms(self.since)
        return sum(tariff.micros(begin, begin + self.ms_by(now)) for tariff in self.tariffs)

    def changed(self, group: int, at: datetime, micros_per_hour: int) -> Meter:
        """The meter after a change of price; itself where it has no such group."""
        if group >= len(self.tariffs):
            return self
        changed = self.tariffs[group].changed(at, micros_per_hour)
        return replace(self, tariffs=(*self.tariffs[:group], changed, *self.tariffs[group + 1 :]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Sums over placements that are gone, and the meters of the newest."""

    free_since: datetime
    """When the newest placement ended, or the job was submitted, or taken up again after a pause."""
    node_ms: int = 0
    """Of all placements that are gone."""
    settled_micros: int = 0
    """Of those whose meter is kept no longer."""
    meters: tuple[Meter, ...] = ()
    """Of the newest placements, oldest first; the last one may stand."""

    @property
    def standing(self) -> Meter | None:
        """The meter that runs; None while no nodes stand."""
        return self.meters[-1] if self.meters and self.meters[-1].until is None else None

    @property
    def placed_at(self) -> datetime | None:
        """Since when nodes are paid for; None while none stand."""
        return self.standing.since if self.standing else None

    @property
    def micros_per_hour(self) -> int:
        """Price of all nodes that stand, by what is known; 0 while none do."""
        if self.standing is None:
            return 0
        return sum(tariff.newest_micros_per_hour for tariff in self.standing.tariffs)

    @property
    def paid_micros(self) -> int:
        """Micro-dollars for all placements that are gone."""
        gone = (meter for meter in self.meters if meter.until is not None)
        return self.settled_micros + sum(meter.micros_by(meter.since) for meter in gone)

    def opened(self, at: datetime, attempt: int, tariffs: tuple[Tariff, ...]) -> Account:
        """The account once nodes stand. No moment is paid for twice, whatever the launcher's clocks say."""
        meter = Meter(attempt=attempt, since=max(at, self.free_since), tariffs=tariffs)
        gone, kept = self.meters[:-KEPT], self.meters[-KEPT:]
        return replace(
            self,
            settled_micros=self.settled_micros + sum(old.micros_by(at) for old in gone),
            meters=(*kept, meter),
        )

    def closed(self, at: datetime) -> Account:
        """The account once they are gone; itself when none stood."""
        meter = self.standing
        if meter is None:
            return self
        over = replace(meter, until=max(at, meter.since))
        return replace(
            self,
            free_since=max(at, meter.since),
            node_ms=self.node_ms + over.ms_by(at),
            meters=(*self.meters[:-1], over),
        )

    def knows(self, attempt: int) -> bool:
        """Whether a change of the price of an attempt can still be taken in."""
        return any(meter.attempt == attempt for meter in self.meters)

    def changed(self, attempt: int, group: int, at: datetime, micros_per_hour: int) -> Account:
        """The account after nodes of an attempt have cost something else from a moment on."""
        meters = tuple(
            meter.changed(group, at, micros_per_hour) if meter.attempt == attempt else meter
            for meter in self.meters
        )
        return replace(self, meters=meters)

    def resumed(self, at: datetime) -> Account:
        """The account of a job that waits anew from `at` on."""
        return replace(self, free_since=max(at, self.free_since))

    def node_ms_by(self, now: datetime) -> int:
        """Milliseconds with nodes until `now`."""
        return self.node_ms + (self.standing.ms_by(now) if self.standing else 0)

    def paid_micros_by(self, now: datetime) -> int:
        """Micro-dollars for them."""
        return self.paid_micros + (self.standing.micros_by(now) if self.standing else 0)

    def ms_until_node_ms(self, limit_ms: int, now: datetime) -> int | None:
        """Milliseconds from `now` until there will have been nodes for so long; None while none stand."""
        return None if self.standing is None else limit_ms - self.node_ms_by(now)

    def ms_until_paid(self, limit_micros: int, now: datetime) -> int | None:
        """Milliseconds from `now` until so much will have been paid at the present price; None while no money runs.

        Of several groups, each of which is rounded down, it is the moment at which that is sure.
        """
        if self.standing is None or not self.micros_per_hour:
            return None
        begin = to_ms(self.standing.since)
        end = begin + self.standing.ms_by(now)
        run_up = sum(tariff.run_up(begin, end) for tariff in self.standing.tariffs)
        left_micros = limit_micros - self.paid_micros + len(self.standing.tariffs) - 1
        return -(-(left_micros * MS_PER_HOUR - run_up) // self.micros_per_hour)
