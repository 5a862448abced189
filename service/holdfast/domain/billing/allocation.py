"""Cost allocation: a bill split by attempt, zone and UTC day.

The parts add up to the bill, to the millisecond and to the micro-dollar. Money is split by zone and day with the bill's rounding.
Time is split by day only and assigned to the zone of the placement, so that nodes in several zones count once. Waiting is assigned
to the zone in which it ended; waiting after the last attempt has no zone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final

from holdfast.domain.billing.bill import AttemptBill, Bill, GroupBill
from holdfast.domain.billing.phases import Phases, Span, cost_by_phase, duration_by_phase
from holdfast.domain.billing.rate import to_ms

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MS_PER_DAY: Final = 86_400_000


@dataclass(frozen=True, kw_only=True, slots=True)
class CostAllocation:
    """Time and cost of one attempt in one zone on one day."""

    attempt: int
    """Attempt number; 0 for waiting that no attempt followed."""
    zone: str
    """Zone; empty if nodes never became ready."""
    day: date
    waiting_ms: int = 0
    ms: Phases = field(default_factory=Phases)
    node_ms: int = 0
    """Time multiplied by the number of nodes that ran in this zone."""
    micros: Phases = field(default_factory=Phases)
    adjusted_micros: int = 0
    on_demand_micros: int = 0
    """On-demand cost of the useful work and the single setup; unmeasured time at the price paid."""
    simulated: bool = False
    is_price_estimate: bool = False

    @property
    def paid_micros(self) -> int:
        """Amount after provider rules."""
        return self.micros.total + self.adjusted_micros


@dataclass(slots=True)
class _AllocationTotal:
    """Mutable sums of an allocation."""

    waiting_ms: int = 0
    ms: Phases = field(default_factory=Phases)
    node_ms: int = 0
    micros: Phases = field(default_factory=Phases)
    adjusted_micros: int = 0
    on_demand_micros: int = 0


def allocate_costs(account: Bill, since: int = 1) -> list[CostAllocation]:
    """The nonzero allocations of a bill for attempts from `since` on, and without an attempt."""
    sums: defaultdict[tuple[int, str, date], _AllocationTotal] = defaultdict(_AllocationTotal)
    for item in account.attempts:
        if item.attempt < since:
            continue
        waited = item.begin_ms - item.waiting_ms, item.begin_ms
        for day, begin_ms, end_ms in split_by_day(*waited):
            sums[item.attempt, item.zone, day].waiting_ms += end_ms - begin_ms
        for day, spans in _spans_by_day(item.spans):
            total = sums[item.attempt, item.zone, day]
            total.ms += duration_by_phase(spans)
            for group in item.groups:
                for zone, part in _spans_by_zone(group, spans):
                    _add(sums[item.attempt, zone, day], account, item, group, part)
    end = _free_since(account)
    for day, begin_ms, end_ms in split_by_day(end, end + account.tail_ms):
        sums[0, "", day].waiting_ms += end_ms - begin_ms
    ends = {item.attempt: item.end_ms for item in account.attempts}
    for line in account.adjustments:
        if line.attempt < since:
            continue
        sums[line.attempt, line.zone, day_of(ends[line.attempt])].adjusted_micros += line.micros
    marks = {item.attempt: item for item in account.attempts}
    return [
        CostAllocation(
            attempt=attempt,
            zone=zone,
            day=day,
            waiting_ms=total.waiting_ms,
            ms=total.ms,
            node_ms=total.node_ms,
            micros=total.micros,
            adjusted_micros=total.adjusted_micros,
            on_demand_micros=total.on_demand_micros,
            simulated=attempt in marks and marks[attempt].simulated,
            is_price_estimate=attempt in marks and marks[attempt].is_price_estimate,
        )
        for (attempt, zone, day), total in sorted(sums.items())
    ]


def split_by_day(begin_ms: int, end_ms: int) -> Iterator[tuple[date, int, int]]:
    """Split a span at midnight UTC; each part with its day. An empty span has no parts."""
    while begin_ms < end_ms:
        midnight = (begin_ms // MS_PER_DAY + 1) * MS_PER_DAY
        yield day_of(begin_ms), begin_ms, min(midnight, end_ms)
        begin_ms = midnight


def _spans_by_day(spans: tuple[Span, ...]) -> list[tuple[date, list[Span]]]:
    days: defaultdict[date, list[Span]] = defaultdict(list)
    if spans and spans[0].begin_ms // MS_PER_DAY == (spans[-1].end_ms - 1) // MS_PER_DAY:
        return [(day_of(spans[0].begin_ms), list(spans))]
    for span in spans:
        for day, begin_ms, end_ms in split_by_day(span.begin_ms, span.end_ms):
            days[day].append(Span(span.phase, begin_ms, end_ms))
    return sorted(days.items())


def _spans_by_zone(group: GroupBill, spans: list[Span]) -> Iterator[tuple[str, list[Span]]]:
    """Split spans by the zones in which the group's nodes stood."""
    if len(group.zones) == 1:
        if group.zone:
            yield group.zone, spans
        return
    for zone, since, until in group.split_by_zone(spans[0].begin_ms, spans[-1].end_ms):
        yield (
            zone,
            [
                Span(span.phase, max(span.begin_ms, since), min(span.end_ms, until))
                for span in spans
                if span.begin_ms < until and span.end_ms > since
            ],
        )


def _add(
    total: _AllocationTotal, account: Bill, item: AttemptBill, group: GroupBill, spans: list[Span]
) -> None:
    is_whole = len(spans) == len(item.spans) and spans[0] == item.spans[0]
    paid, full = group.micros, group.on_demand_micros
    if not (is_whole and spans[-1] == item.spans[-1]):
        paid = cost_by_phase(spans, group.rate, item.begin_ms)
        full = cost_by_phase(spans, group.on_demand_rate, item.begin_ms)
    is_first = account.on_demand_setup[0] == item.attempt
    total.node_ms += group.node_ms(spans[0].begin_ms, spans[-1].end_ms)
    total.micros += paid
    total.on_demand_micros += full.useful + paid.unmeasured + (full.setup if is_first else 0)


def _free_since(account: Bill) -> int:
    """End of the last attempt, or the submission time."""
    last = account.attempts[-1:]
    return last[0].end_ms if last else to_ms(account.submitted_at)


def day_of(at_ms: int) -> date:
    """The day in UTC of a time in milliseconds since 1970."""
    return _date(at_ms // MS_PER_DAY)


@lru_cache(maxsize=1024)
def _date(number: int) -> date:
    """The date for a number of days since 1970-01-01.

    It is cached because each span of a bill needs one.
    """
    return (_EPOCH + timedelta(days=number)).date()
