"""Running cost of a job: node time and cost so far, and calendar months in UTC.

The sums equal those of the bill without its phases and are updated with every event, because guards need them at every
observation. They exclude provider rules: see `holdfast.domain.billing.provider_rules`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from holdfast.domain.billing.rate import MS_PER_HOUR, RateSchedule, to_ms, to_time


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month in UTC."""

    start: datetime
    end: datetime

    @classmethod
    def containing(cls, now: datetime) -> Month:
        """The month that contains a time."""
        at = now.astimezone(UTC)
        first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = (at.year, at.month + 1) if at.month < 12 else (at.year + 1, 1)
        return cls(first, first.replace(year=year, month=month))

    def __str__(self) -> str:
        """The month as `2026-03`."""
        return f"{self.start:%Y-%m}"


__all__ = ["MS_PER_HOUR", "RETAINED_METERS", "AttemptMeter", "RunningCost", "ms_until", "to_ms"]

RETAINED_METERS: Final = 8
"""Ended placements whose price may still change. A lower value refuses late price changes; a higher value stores more meters
with every event.
"""

RateStep: TypeAlias = Callable[[RateSchedule], RateSchedule]
"""A change of the rate of a group of nodes."""

MAX_LINE_RATE: Final = 2**40
"""Upper bound in micro-dollars per hour, about a million dollars: SQL multiplies it by milliseconds per hour in 64 bits."""


def ms_until(moment: datetime, now: datetime) -> int:
    """Whole milliseconds until `moment`; negative if it has passed."""
    return -((now - moment) // timedelta(milliseconds=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptMeter:
    """Cost meter of one placement."""

    attempt: int
    since: datetime
    """Start of the paid time."""
    until: datetime | None = None
    """End of the paid time; None while the nodes run."""
    tariffs: tuple[RateSchedule, ...]
    """Rates, one for each group of nodes."""

    def ms_by(self, now: datetime) -> int:
        """Milliseconds with nodes until `now`."""
        return max(0, to_ms(self.until or now) - to_ms(self.since))

    def micros_by(self, now: datetime) -> int:
        """Micro-dollars until `now`; each group is rounded separately, as displayed."""
        begin = to_ms(self.since)
        return sum(tariff.micros(begin, begin + self.ms_by(now)) for tariff in self.tariffs)

    def micros_in(self, month: Month, now: datetime) -> int:
        """Micro-dollars within a month until `now`.

        It is a difference of two sums, so that months add up to the total.
        """
        begin = to_ms(self.since)
        end = begin + self.ms_by(now)
        low, high = (
            max(begin, min(end, to_ms(border))) for border in (month.start, min(now, month.end))
        )
        return sum(
            tariff.micros(begin, high) - tariff.micros(begin, low) for tariff in self.tariffs
        )

    def months_by(self, now: datetime) -> Iterator[Month]:
        """Months in which the meter ran, until `now`."""
        month = Month.containing(self.since)
        end = max(self.since, self.until or now)
        while month.start <= end:
            yield month
            month = Month.containing(month.end)

    def with_rate(self, group: int, change: RateStep) -> AttemptMeter:
        """The meter after a change of a group's rate; unchanged if the group does not exist."""
        if group >= len(self.tariffs):
            return self
        changed = change(self.tariffs[group])
        return replace(self, tariffs=(*self.tariffs[:group], changed, *self.tariffs[group + 1 :]))


class CostLine(NamedTuple):
    """Cost as a linear function of time since the newest price change."""

    month: str
    """Month of `since_ms`, such as `2026-03`."""
    micros: int
    """Micro-dollars paid in that month until `since_ms`."""
    rest: int
    """Rounding remainder at `since_ms`, in micro-dollars per hour times milliseconds."""
    micros_per_hour: int
    since_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningCost:
    """Sums over ended placements, and the meters of the newest ones."""

    free_since: datetime
    """Start of the wait for nodes: the last loss, submission or resume."""
    node_ms: int = 0
    """Time of all ended placements."""
    settled_micros: int = 0
    """Cost of placements whose meter is no longer retained."""
    settled_months: tuple[tuple[str, int], ...] = ()
    """`settled_micros` by month, such as `2026-03`, in order."""
    meters: tuple[AttemptMeter, ...] = ()
    """Meters of the newest placements, oldest first; the last one may be open."""

    @property
    def open_meter(self) -> AttemptMeter | None:
        """The open meter; None without running nodes."""
        return self.meters[-1] if self.meters and self.meters[-1].until is None else None

    @property
    def placed_at(self) -> datetime | None:
        """Start of the paid time of the running nodes; None without running nodes."""
        return self.open_meter.since if self.open_meter else None

    @property
    def micros_per_hour(self) -> int:
        """Current hourly price of all running nodes; 0 without running nodes."""
        if self.open_meter is None:
            return 0
        return sum(tariff.newest_micros_per_hour for tariff in self.open_meter.tariffs)

    @property
    def cost_line(self) -> CostLine | None:
        """Cost line since the newest price change.

        None without nodes, with several rates or above `MAX_LINE_RATE`.
        """
        if self.open_meter is None or len(self.open_meter.tariffs) != 1:
            return None
        if self.micros_per_hour > MAX_LINE_RATE:
            return None
        [tariff] = self.open_meter.tariffs
        begin_ms = to_ms(self.open_meter.since)
        since_ms = max(begin_ms, tariff.steps[-1][0])
        since = to_time(since_ms)
        month = Month.containing(since)
        return CostLine(
            month=str(month),
            micros=self.paid_micros_in(month, since),
            rest=tariff.accrue(begin_ms, since_ms) % MS_PER_HOUR,
            micros_per_hour=tariff.newest_micros_per_hour,
            since_ms=since_ms,
        )

    @property
    def paid_micros(self) -> int:
        """Micro-dollars of all ended placements."""
        gone = (meter for meter in self.meters if meter.until is not None)
        return self.settled_micros + sum(meter.micros_by(meter.since) for meter in gone)

    def opened(self, at: datetime, attempt: int, tariffs: tuple[RateSchedule, ...]) -> RunningCost:
        """The account after nodes became ready.

        Overlapping launcher timestamps are not charged twice.
        """
        meter = AttemptMeter(attempt=attempt, since=max(at, self.free_since), tariffs=tariffs)
        gone, kept = self.meters[:-RETAINED_METERS], self.meters[-RETAINED_METERS:]
        return replace(
            self,
            settled_micros=self.settled_micros + sum(old.micros_by(at) for old in gone),
            settled_months=self._settled_months_with(gone),
            meters=(*kept, meter),
        )

    def _settled_months_with(self, gone: tuple[AttemptMeter, ...]) -> tuple[tuple[str, int], ...]:
        months = Counter(dict(self.settled_months))
        for meter in gone:
            assert meter.until, "only the newest meter may be open"
            for month in meter.months_by(meter.until):
                months[str(month)] += meter.micros_in(month, meter.until)
        return tuple(sorted(months.items()))

    def closed(self, at: datetime) -> RunningCost:
        """The account after the nodes are gone; unchanged without running nodes."""
        meter = self.open_meter
        if meter is None:
            return self
        over = replace(meter, until=max(at, meter.since))
        return replace(
            self,
            free_since=max(at, meter.since),
            node_ms=self.node_ms + over.ms_by(at),
            meters=(*self.meters[:-1], over),
        )

    def has_meter(self, attempt: int) -> bool:
        """Whether a price change of an attempt can still be applied."""
        return any(meter.attempt == attempt for meter in self.meters)

    def with_price_change(
        self, attempt: int, group: int, at: datetime, micros_per_hour: int
    ) -> RunningCost:
        """The account after a price change of an attempt's nodes."""
        return self._with_rate(
            attempt, group, lambda rate: rate.with_price_change(at, micros_per_hour)
        )

    def with_node_change(
        self, attempt: int, group: int, at: datetime, micros_per_hour: int
    ) -> RunningCost:
        """The account after nodes of an attempt were lost or replaced."""
        return self._with_rate(
            attempt, group, lambda rate: rate.with_node_change(at, micros_per_hour)
        )

    def _with_rate(self, attempt: int, group: int, change: RateStep) -> RunningCost:
        meters = tuple(
            meter.with_rate(group, change) if meter.attempt == attempt else meter
            for meter in self.meters
        )
        return replace(self, meters=meters)

    def resumed(self, at: datetime) -> RunningCost:
        """The account of a job that waits again from `at` on."""
        return replace(self, free_since=max(at, self.free_since))

    def node_ms_by(self, now: datetime) -> int:
        """Milliseconds with nodes until `now`."""
        return self.node_ms + (self.open_meter.ms_by(now) if self.open_meter else 0)

    def paid_micros_by(self, now: datetime) -> int:
        """Micro-dollars until `now`."""
        return self.paid_micros + (self.open_meter.micros_by(now) if self.open_meter else 0)

    def paid_micros_in(self, month: Month, now: datetime) -> int:
        """Micro-dollars within a month, until `now`."""
        settled = dict(self.settled_months).get(str(month), 0)
        return settled + sum(meter.micros_in(month, now) for meter in self.meters)

    def ms_until_node_ms(self, limit_ms: int, now: datetime) -> int | None:
        """Milliseconds from `now` until node time reaches the limit; None without running nodes."""
        return None if self.open_meter is None else limit_ms - self.node_ms_by(now)

    def ms_until_paid(self, limit_micros: int, now: datetime) -> int | None:
        """Milliseconds until the cost reaches the limit at the current price; None without nodes.

        With several groups, each rounded down, it is the time at which the limit is certainly reached.
        """
        if self.open_meter is None or not self.micros_per_hour:
            return None
        begin = to_ms(self.open_meter.since)
        end = begin + self.open_meter.ms_by(now)
        run_up = sum(tariff.accrue(begin, end) for tariff in self.open_meter.tariffs)
        left_micros = limit_micros - self.paid_micros + len(self.open_meter.tariffs) - 1
        return -(-(left_micros * MS_PER_HOUR - run_up) // self.micros_per_hour)
