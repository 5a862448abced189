"""Placements summed up by zone, hour of day, instance type or cause of loss.

Closed jobs are read from rows, and live jobs are added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import partial
from operator import add
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, case, func, null, select

from holdfast.domain.billing.rate import MS_PER_HOUR, to_ms
from holdfast.domain.events import DRILL, PREEMPTION_CAUSES
from holdfast.domain.preemptions.placements import PlacementRecord
from holdfast.domain.preemptions.survival import SurvivalPoint, mean_minutes, survival
from holdfast.store.billing.bills import MAX_PER_REQUEST, BillRollups, LiveJob, placement_row
from holdfast.store.billing.rollup_cache import Only
from holdfast.store.tables.billing import ledger_hours, ledger_placements

T = TypeVar("T")
U = TypeVar("U")

SPANS: Final = ("detect_ms", "wait_ms", "setup_ms", "restore_ms", "redo_ms", "notice_ms")
COUNTS: Final = ("is_noticed", "is_notice_used", "lost_steps", "lost_ms", "lost_micros")
PRICE_FLAGS: Final = ("simulated", "is_price_estimate")
PREEMPTION_CAUSE_VALUES: Final = tuple(sorted(cause.value for cause in PREEMPTION_CAUSES))

GroupKey: TypeAlias = tuple[str | None, int | None, str | None]
"""Zone, hour of the day, instance type; None for what is not distinguished."""


class LossBy(StrEnum):
    """Dimension of a sum."""

    ZONE = "zone"
    HOUR = "hour"
    TYPE = "type"
    CAUSE = "cause"
    ZONE_HOUR = "zone-hour"


@dataclass(frozen=True, kw_only=True, slots=True)
class LossRequest:
    """A request for sums of placements."""

    by: LossBy
    since: date | None = None
    """First day, in UTC; None: unlimited."""
    until: date | None = None
    """Last day, in UTC; None: until now."""
    zone: str | None = None
    instance_type: str | None = None
    projects: frozenset[str] | None = None
    """Only these projects; None: all."""
    hours: int = 1
    """Hours of the day that form one group: 1, 2, 3, 4, 6, 8 or 12."""

    @property
    def since_ms(self) -> int | None:
        """Start of the first day, in milliseconds since 1970."""
        return None if self.since is None else _midnight(self.since)

    @property
    def before_ms(self) -> int | None:
        """End of the last day, in milliseconds since 1970."""
        return None if self.until is None else _midnight(self.until + timedelta(days=1))

    def includes(self, at_ms: int) -> bool:
        """Whether a moment is within the request."""
        since, before = self.since_ms, self.before_ms
        return (since is None or at_ms >= since) and (before is None or at_ms < before)

    def group_key(self, zone: T, hour: U, instance_type: T) -> tuple[T | None, U | None, T | None]:
        """The distinguished values of a placement."""
        return (
            zone if self.by in {LossBy.ZONE, LossBy.ZONE_HOUR} else None,
            hour if self.by in {LossBy.HOUR, LossBy.ZONE_HOUR} else None,
            instance_type if self.by is LossBy.TYPE else None,
        )


@dataclass(slots=True)
class LossTotal:
    """Totals of placements.

    Preemptions and node failures are separate from other losses, which say nothing about the
    market.
    """

    zone: str | None = None
    hour: int | None = None
    instance_type: str | None = None
    cause: str | None = None
    node_ms: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    """All losses."""
    counted: int = 0
    """Losses in the figures below: those of the requested cause, otherwise all preemptions."""
    amounts: Counter[str] = field(default_factory=Counter)
    """Sums of `COUNTS` and `SPANS`."""
    known_counts: Counter[str] = field(default_factory=Counter)
    """Number of losses for which each span is known."""
    simulated: bool = False
    """Whether a price is simulated."""
    is_price_estimate: bool = False

    @property
    def preempted(self) -> int:
        """Losses caused by the market."""
        return sum(self.causes[cause] for cause in PREEMPTION_CAUSE_VALUES)

    @property
    def drills(self) -> int:
        """Losses that users requested, which no other figure includes."""
        return self.causes[DRILL]

    @property
    def node_hours(self) -> float:
        """Total node hours."""
        return self.node_ms / MS_PER_HOUR

    def mean_s(self, span: str) -> float | None:
        """Average seconds of one of `SPANS`; None if unknown."""
        return (
            self.amounts[span] / self.known_counts[span] / 1000 if self.known_counts[span] else None
        )


@dataclass(frozen=True, slots=True)
class PreemptionReport:
    """The sums of a request."""

    totals: list[LossTotal]
    """Most losses first; hours in order."""
    total: LossTotal
    survival: list[SurvivalPoint]
    mean_minutes: float | None
    """Mean time between two preemptions; None if there were too few."""
    pending: int
    """Closed jobs that are not included with their current values: repeat the request later."""


class PreemptionQueries:
    """Queries over all placements."""

    def __init__(self, ledgers: BillRollups) -> None:
        self._ledgers = ledgers

    def report(self, question: LossRequest, now: datetime) -> PreemptionReport:
        """The requested sums, as of now."""
        self._ledgers.roll_up(MAX_PER_REQUEST)
        # Hours are grouped at the end.
        by_hour = replace(question, hours=1)
        found = self._ledgers.cache.get(by_hour, partial(_read, question), LossCounts.__add__)
        whole = LossCounts(dict(found.node_ms), dict(found.lost), dict(found.lifetimes))
        for item in self._ledgers.live_jobs(now):
            if question.projects is None or item.history.project in question.projects:
                whole.add(
                    item.cached(
                        by_hour, partial(_live_counts, item, item.closed_placements, question)
                    )
                )
                whole.add(_live_counts(item, item.open_placements, question))
        sums, total = _totals(whole, question)
        ended = [(minutes, *ends) for minutes, ends in whole.lifetimes.items()]
        mean = mean_minutes(ended)
        return PreemptionReport(sums, total, survival(ended), mean, self._ledgers.pending())


@dataclass(frozen=True, slots=True)
class LossCounts:
    """Counts that can be added up before anything is divided."""

    node_ms: dict[GroupKey, int]
    """Node milliseconds."""
    lost: dict[tuple[GroupKey, str], tuple[int, ...]]
    """By group and cause: number of losses, the sums of `COUNTS`, `SPANS` and `MARKS`, and for how
    many each span is known."""
    lifetimes: dict[int, tuple[int, int]]
    """By minutes: placements preempted after that time, and placements that ended otherwise or
    still run."""

    def add(self, other: LossCounts) -> None:
        """Add other counts."""
        for place, node_ms in other.node_ms.items():
            self.node_ms[place] = self.node_ms.get(place, 0) + node_ms
        for key, values in other.lost.items():
            known = self.lost.get(key)
            self.lost[key] = values if known is None else tuple(map(add, known, values))
        for minutes, (taken, left) in other.lifetimes.items():
            before = self.lifetimes.get(minutes, (0, 0))
            self.lifetimes[minutes] = before[0] + taken, before[1] + left

    def __add__(self, other: LossCounts) -> LossCounts:
        """The sum of both."""
        both = LossCounts(dict(self.node_ms), dict(self.lost), dict(self.lifetimes))
        both.add(other)
        return both


def _read(question: LossRequest, connection: Connection, only: Only) -> LossCounts:
    """The counts of closed jobs."""
    node_time = connection.execute(_node_time_query(question, only))
    lost = connection.execute(_loss_query(question, only))
    lasted = connection.execute(_lifetime_query(question, only))
    return LossCounts(
        {(zone, hour, kind): int(node_ms or 0) for zone, hour, kind, node_ms in node_time},
        {
            ((zone, hour, kind), cause): tuple(int(value or 0) for value in values)
            for zone, hour, kind, cause, *values in lost
        },
        {minutes: (int(taken), count - int(taken)) for minutes, taken, count in lasted},
    )


def _grouped(
    table: Table, question: LossRequest, hour: Any, *more: Any
) -> tuple[list[Any], list[Any]]:
    """Columns of distinguished values, and those to group by."""
    place = question.group_key(table.c.zone, hour, table.c.instance_type)
    columns = [null() if column is None else column for column in place]
    return [*columns, *more], [column for column in (*place, *more) if column is not None]


def _node_time_query(question: LossRequest, only: Only) -> Select[Any]:
    hours = ledger_hours.c
    columns, groups = _grouped(ledger_hours, question, hours.day_hour)
    query = select(*columns, func.sum(hours.node_ms)).where(
        *conditions(ledger_hours, question, only)
    )
    if question.since_ms is not None:
        query = query.where(hours.hour >= question.since_ms // MS_PER_HOUR)
    if question.before_ms is not None:
        query = query.where(hours.hour < question.before_ms // MS_PER_HOUR)
    return query.group_by(*groups)


def _loss_query(question: LossRequest, only: Only) -> Select[Any]:
    table = ledger_placements.c
    columns, groups = _grouped(ledger_placements, question, table.end_hour, table.cause)
    sums = [func.count(), *(func.sum(table[name]) for name in (*COUNTS, *SPANS, *PRICE_FLAGS))]
    known = [func.count(table[name]) for name in SPANS]
    query = select(*columns, *sums, *known).where(table.cause.is_not(None)).group_by(*groups)
    return query.where(*conditions(ledger_placements, question, only), *ends_within(question))


def _lifetime_query(question: LossRequest, only: Only) -> Select[Any]:
    table = ledger_placements.c
    taken = func.sum(case((table.cause.in_(PREEMPTION_CAUSE_VALUES), 1), else_=0))
    query = select(table.minutes, taken, func.count()).group_by(table.minutes)
    return query.where(*conditions(ledger_placements, question, only), *ends_within(question))


def conditions(
    table: Table, question: LossRequest, only: Only = None
) -> Iterator[ColumnElement[bool]]:
    """Conditions for the rows of a request."""
    if only is not None:
        yield table.c.job_id.in_(only)
    if question.zone is not None:
        yield table.c.zone == question.zone
    if question.instance_type is not None:
        yield table.c.instance_type == question.instance_type
    if question.projects is not None:
        yield table.c.project.in_(question.projects)


def ends_within(question: LossRequest) -> Iterator[ColumnElement[bool]]:
    """Conditions for placements that ended in the days of a request."""
    if question.since_ms is not None:
        yield ledger_placements.c.end_ms >= question.since_ms
    if question.before_ms is not None:
        yield ledger_placements.c.end_ms < question.before_ms


def _live_counts(
    item: LiveJob, placements: Iterable[PlacementRecord], question: LossRequest
) -> LossCounts:
    """The counts of a live job's placements."""
    counts = LossCounts({}, {}, {})
    for placement in placements:
        if question.instance_type not in (None, placement.instance_type):
            continue
        node_ms_by_group: Counter[GroupKey] = Counter()
        for zone, hour, node_ms in placement.hours:
            if question.zone in (None, zone) and question.includes(hour * MS_PER_HOUR):
                node_ms_by_group[question.group_key(zone, hour % 24, placement.instance_type)] += (
                    node_ms
                )
        counts.add(LossCounts(node_ms_by_group, {}, {}))
        if question.zone not in (None, placement.zone):
            continue
        row = placement_row(item.history, placement)
        is_within = question.includes(placement.end_ms)
        if placement.is_running or is_within:
            ends = (1, 0) if placement.is_preempted else (0, 1)
            counts.add(LossCounts({}, {}, {row["minutes"]: ends}))
        if placement.listed_cause is not None and is_within:
            place = question.group_key(placement.zone, row["end_hour"], placement.instance_type)
            known = (int(row[name] is not None) for name in SPANS)
            values = (1, *(row[name] or 0 for name in (*COUNTS, *SPANS, *PRICE_FLAGS)), *known)
            counts.add(LossCounts({}, {(place, placement.listed_cause): values}, {}))
    return counts


def _totals(counts: LossCounts, question: LossRequest) -> tuple[list[LossTotal], LossTotal]:
    """The sums, and the total of all."""
    sums: dict[tuple[GroupKey, str], LossTotal] = {}
    total = LossTotal()
    for place, node_ms in counts.node_ms.items():
        if question.by is not LossBy.CAUSE:
            _loss_total(sums, _hour_group(place, question), "").node_ms += node_ms
        total.node_ms += node_ms
    for (place, cause), values in counts.lost.items():
        by_cause = question.by is LossBy.CAUSE
        losses = _loss_total(sums, _hour_group(place, question), cause if by_cause else "")
        _count(losses, cause, values, is_meant=by_cause)
        _count(total, cause, values)
    if question.by is LossBy.CAUSE:
        for each in sums.values():
            each.node_ms = total.node_ms  # Any cause may end a placement.
    return _sorted(sums.values()), total


def _hour_group(place: GroupKey, question: LossRequest) -> GroupKey:
    """The group of a placement, whose hours may be combined."""
    zone, hour, kind = place
    return zone, None if hour is None else hour - hour % question.hours, kind


def _loss_total(
    sums: dict[tuple[GroupKey, str], LossTotal], place: GroupKey, cause: str
) -> LossTotal:
    if (known := sums.get((place, cause))) is None:
        zone, hour, kind = place
        known = LossTotal(zone=zone, hour=hour, instance_type=kind, cause=cause or None)
        sums[place, cause] = known
    return known


def _count(losses: LossTotal, cause: str, values: Sequence[int], *, is_meant: bool = False) -> None:
    losses.causes[cause] += values[0]
    if not is_meant and cause not in PREEMPTION_CAUSE_VALUES:
        return
    losses.counted += values[0]
    names = (*COUNTS, *SPANS, *PRICE_FLAGS)
    amounts = dict(zip(names, values[1:], strict=False))
    losses.simulated |= bool(amounts.pop("simulated"))
    losses.is_price_estimate |= bool(amounts.pop("is_price_estimate"))
    losses.amounts.update(amounts)
    losses.known_counts.update(dict(zip(SPANS, values[1 + len(names) :], strict=True)))


def _sorted(sums: Iterable[LossTotal]) -> list[LossTotal]:
    def order(each: LossTotal) -> tuple[int, int, str]:
        hour = -1 if each.hour is None else each.hour
        name = each.zone or each.instance_type or each.cause or ""
        return hour, -each.counted, name

    return sorted(sums, key=order)


def _midnight(day: date) -> int:
    return to_ms(datetime.combine(day, time(), tzinfo=UTC))
