"""Months of the calendar, in UTC.

What a job has had so far: time with nodes, and what they cost.

The same sums as those of the bill, without its phases, and kept with every fact: guards ask for them at every look. They
are those before a provider's rules: see `holdfast.domain.billing.provider_rules`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from holdfast.domain.billing.rate import MS_PER_HOUR, RateSchedule, to_ms, to_time


@dataclass(frozen=True, slots=True)
class Month:
    """One month of the calendar, in UTC."""

    start: datetime
    end: datetime

    @classmethod
    def of(cls, now: datetime) -> Month:
        """The month in which a moment lies."""
        at = now.astimezone(UTC)
        first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = (at.year, at.month + 1) if at.month < 12 else (at.year + 1, 1)
        return cls(first, first.replace(year=year, month=month))

    def __str__(self) -> str:
        """As in `2026-03`."""
        return f"{self.start:%Y-%m}"


__all__ = ["KEPT", "MS_PER_HOUR", "AttemptMeter", "RunningCost", "ms_until", "to_ms"]

KEPT: Final = 8
"""Placements that are gone, and of which a change of price may still be told. Smaller: it comes too late, and is refused.
Bigger: they are written again with every fact."""

MOST_ON_LINE: Final = 2**40
"""Micro-dollars an hour, about a million dollars: a database multiplies them by the milliseconds of an hour in 64 bits."""


def ms_until(moment: datetime, now: datetime) -> int:
    """Whole milliseconds after which `moment` has come; less than 0 where it has passed."""
    return -((now - moment) // timedelta(milliseconds=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptMeter:
    """What one placement costs."""

    attempt: int
    since: datetime
    """Since when its nodes are paid for."""
    until: datetime | None = None
    """None while they stand."""
    tariffs: tuple[RateSchedule, ...]
    """One for each of its groups."""

    def ms_by(self, now: datetime) -> int:
        """Milliseconds until `now`."""
        return max(0, to_ms(self.until or now) - to_ms(self.since))

    def micros_by(self, now: datetime) -> int:
        """Micro-dollars for them: each group's own sum is rounded, as people are shown it."""
        begin = to_ms(self.since)
        return sum(tariff.micros(begin, begin + self.ms_by(now)) for tariff in self.tariffs)

    def micros_in(self, month: Month, now: datetime) -> int:
        """Those of them in a month, until `now`: a difference of two sums, so that months add up to the whole."""
        begin = to_ms(self.since)
        end = begin + self.ms_by(now)
        low, high = (
            max(begin, min(end, to_ms(border))) for border in (month.start, min(now, month.end))
        )
        return sum(
            tariff.micros(begin, high) - tariff.micros(begin, low) for tariff in self.tariffs
        )

    def months_by(self, now: datetime) -> Iterator[Month]:
        """The months in which it ran, until `now`."""
        month = Month.of(self.since)
        end = max(self.since, self.until or now)
        while month.start <= end:
            yield month
            month = Month.of(month.end)

    def changed(self, group: int, at: datetime, micros_per_hour: int) -> AttemptMeter:
        """The meter after a change of price; itself where it has no such group."""
        if group >= len(self.tariffs):
            return self
        changed = self.tariffs[group].changed(at, micros_per_hour)
        return replace(self, tariffs=(*self.tariffs[:group], changed, *self.tariffs[group + 1 :]))


class Line(NamedTuple):
    """What a job pays as a line over time, from the newest change of the price of its nodes on."""

    month: str
    """Of `since_ms`, such as `2026-03`."""
    micros: int
    """Paid in that month until then."""
    rest: int
    """What of its nodes' sum was rounded off until then, in micro-dollars an hour times milliseconds."""
    micros_per_hour: int
    since_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningCost:
    """Sums over placements that are gone, and the meters of the newest."""

    free_since: datetime
    """When the newest placement ended, or the job was submitted, or taken up again after a pause."""
    node_ms: int = 0
    """Of all placements that are gone."""
    settled_micros: int = 0
    """Of those whose meter is kept no longer."""
    settled_months: tuple[tuple[str, int], ...] = ()
    """The same by month, such as `2026-03`, in order."""
    meters: tuple[AttemptMeter, ...] = ()
    """Of the newest placements, oldest first; the last one may stand."""

    @property
    def standing(self) -> AttemptMeter | None:
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
    def line(self) -> Line | None:
        """What is paid from the newest change on; None while no nodes stand, or such of several prices, or of a huge one."""
        if self.standing is None or len(self.standing.tariffs) != 1:
            return None
        if self.micros_per_hour > MOST_ON_LINE:
            return None
        [tariff] = self.standing.tariffs
        begin_ms = to_ms(self.standing.since)
        since_ms = max(begin_ms, tariff.steps[-1][0])
        since = to_time(since_ms)
        month = Month.of(since)
        return Line(
            month=str(month),
            micros=self.paid_micros_in(month, since),
            rest=tariff.accrue(begin_ms, since_ms) % MS_PER_HOUR,
            micros_per_hour=tariff.newest_micros_per_hour,
            since_ms=since_ms,
        )

    @property
    def paid_micros(self) -> int:
        """Micro-dollars for all placements that are gone."""
        gone = (meter for meter in self.meters if meter.until is not None)
        return self.settled_micros + sum(meter.micros_by(meter.since) for meter in gone)

    def opened(self, at: datetime, attempt: int, tariffs: tuple[RateSchedule, ...]) -> RunningCost:
        """The account once nodes stand. No moment is paid for twice, whatever the launcher's clocks say."""
        meter = AttemptMeter(attempt=attempt, since=max(at, self.free_since), tariffs=tariffs)
        gone, kept = self.meters[:-KEPT], self.meters[-KEPT:]
        return replace(
            self,
            settled_micros=self.settled_micros + sum(old.micros_by(at) for old in gone),
            settled_months=self._settled_with(gone),
            meters=(*kept, meter),
        )

    def _settled_with(self, gone: tuple[AttemptMeter, ...]) -> tuple[tuple[str, int], ...]:
        months = Counter(dict(self.settled_months))
        for meter in gone:
            assert meter.until, "only the newest may stand"
            for month in meter.months_by(meter.until):
                months[str(month)] += meter.micros_in(month, meter.until)
        return tuple(sorted(months.items()))

    def closed(self, at: datetime) -> RunningCost:
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

    def changed(self, attempt: int, group: int, at: datetime, micros_per_hour: int) -> RunningCost:
        """The account after nodes of an attempt have cost something else from a moment on."""
        meters = tuple(
            meter.changed(group, at, micros_per_hour) if meter.attempt == attempt else meter
            for meter in self.meters
        )
        return replace(self, meters=meters)

    def resumed(self, at: datetime) -> RunningCost:
        """The account of a job that waits anew from `at` on."""
        return replace(self, free_since=max(at, self.free_since))

    def node_ms_by(self, now: datetime) -> int:
        """Milliseconds with nodes until `now`."""
        return self.node_ms + (self.standing.ms_by(now) if self.standing else 0)

    def paid_micros_by(self, now: datetime) -> int:
        """Micro-dollars for them."""
        return self.paid_micros + (self.standing.micros_by(now) if self.standing else 0)

    def paid_micros_in(self, month: Month, now: datetime) -> int:
        """Micro-dollars for nodes in a month, until `now`."""
        settled = dict(self.settled_months).get(str(month), 0)
        return settled + sum(meter.micros_in(month, now) for meter in self.meters)

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
        run_up = sum(tariff.accrue(begin, end) for tariff in self.standing.tariffs)
        left_micros = limit_micros - self.paid_micros + len(self.standing.tariffs) - 1
        return -(-(left_micros * MS_PER_HOUR - run_up) // self.micros_per_hour)
