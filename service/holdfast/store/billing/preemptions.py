"""What became of nodes, added up by zone, hour of day, instance type or cause: from rows, and from jobs that live."""

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
from holdfast.domain.events import TAKEN
from holdfast.domain.preemptions.placements import PlacementRecord
from holdfast.domain.preemptions.survival import SurvivalPoint, mean_minutes, survival
from holdfast.store.billing.bills import AT_ONCE, BillRollups, LiveJob, placement_row
from holdfast.store.billing.rollup_cache import Only
from holdfast.store.tables.billing import ledger_hours, ledger_placements

T = TypeVar("T")
U = TypeVar("U")

SPANS: Final = ("detect_ms", "wait_ms", "setup_ms", "restore_ms", "redo_ms", "notice_ms")
COUNTS: Final = ("is_noticed", "is_notice_used", "lost_steps", "lost_ms", "lost_micros")
MARKS: Final = ("simulated", "is_price_estimate")
TAKEN_WORDS: Final = tuple(sorted(cause.value for cause in TAKEN))

Place: TypeAlias = tuple[str | None, int | None, str | None]
"""Zone, hour of the day, instance type; None where that is not told apart."""


class LossBy(StrEnum):
    """What sums are made of."""

    ZONE = "zone"
    HOUR = "hour"
    TYPE = "type"
    CAUSE = "cause"
    ZONE_HOUR = "zone-hour"


@dataclass(frozen=True, kw_only=True, slots=True)
class LossQuestion:
    """What is to be added up."""

    by: LossBy
    since: date | None = None
    """First day, in UTC; None: from the beginning."""
    until: date | None = None
    """Last day, in UTC; None: until now."""
    zone: str | None = None
    instance_type: str | None = None
    projects: frozenset[str] | None = None
    """Only of these projects; None: of all."""
    hours: int = 1
    """Hours of the day that are one, where they are told apart: 1, 2, 3, 4, 6, 8 or 12."""

    @property
    def since_ms(self) -> int | None:
        """When that day begins, since 1970."""
        return None if self.since is None else _midnight(self.since)

    @property
    def before_ms(self) -> int | None:
        """When the last day is over, since 1970."""
        return None if self.until is None else _midnight(self.until + timedelta(days=1))

    def takes(self, at_ms: int) -> bool:
        """Whether what was then is meant."""
        since, before = self.since_ms, self.before_ms
        return (since is None or at_ms >= since) and (before is None or at_ms < before)

    def place(self, zone: T, hour: U, instance_type: T) -> tuple[T | None, U | None, T | None]:
        """Of a place, what is told apart."""
        return (
            zone if self.by in {LossBy.ZONE, LossBy.ZONE_HOUR} else None,
            hour if self.by in {LossBy.HOUR, LossBy.ZONE_HOUR} else None,
            instance_type if self.by is LossBy.TYPE else None,
        )


@dataclass(slots=True)
class Losses:
    """A sum. What was taken, by the market or by its machines, and what was lost otherwise, which says nothing of them."""

    zone: str | None = None
    hour: int | None = None
    instance_type: str | None = None
    cause: str | None = None
    node_ms: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    """All losses."""
    counted: int = 0
    """Losses that the figures below are of: those of the cause where one is meant, else all that were taken."""
    amounts: Counter[str] = field(default_factory=Counter)
    """Sums of `COUNTS` and `SPANS`."""
    known: Counter[str] = field(default_factory=Counter)
    """Of how many of them each span is known."""
    simulated: bool = False
    """Whether nobody pays the price of any of them."""
    is_price_estimate: bool = False

    @property
    def taken(self) -> int:
        """Losses that say something of the market."""
        return sum(self.causes[cause] for cause in TAKEN_WORDS)

    @property
    def node_hours(self) -> float:
        """How long nodes stood, all together."""
        return self.node_ms / MS_PER_HOUR

    def mean_s(self, span: str) -> float | None:
        """Seconds that one of `SPANS` took on average; None where none is known."""
        return self.amounts[span] / self.known[span] / 1000 if self.known[span] else None


@dataclass(frozen=True, slots=True)
class PreemptionReport:
    """An answer."""

    sums: list[Losses]
    """The most losses first; by hour, in the order of the day."""
    total: Losses
    survival: list[SurvivalPoint]
    mean_minutes: float | None
    """From one placement that was taken to the next; None where too few were."""
    pending: int
    """Jobs that have ended and are not in it as they are now."""


class PreemptionQueries:
    """Sums over all placements."""

    def __init__(self, ledgers: BillRollups) -> None:
        self._ledgers = ledgers

    def ask(self, question: LossQuestion, now: datetime) -> PreemptionReport:
        """The sums that were asked for, as of now."""
        self._ledgers.settle(AT_ONCE)
        # Hours are put together at the end, whichever.
        by_hour = replace(question, hours=1)
        found = self._ledgers.sums.of(by_hour, partial(_read, question), Counts.__add__)
        whole = Counts(dict(found.stood), dict(found.lost), dict(found.lasted))
        for item in self._ledgers.live(now):
            if question.projects is None or item.known.project in question.projects:
                whole.take(
                    item.once(by_hour, partial(_counted, item, item.closed_chapters, question))
                )
                whole.take(_counted(item, item.open_chapters, question))
        sums, total = _told(whole, question)
        ended = [(minutes, *ends) for minutes, ends in whole.lasted.items()]
        mean = mean_minutes(ended)
        return PreemptionReport(sums, total, survival(ended), mean, self._ledgers.pending())


@dataclass(frozen=True, slots=True)
class Counts:
    """What can be added up before anything is divided."""

    stood: dict[Place, int]
    """Milliseconds of nodes."""
    lost: dict[tuple[Place, str], tuple[int, ...]]
    """By place and cause: how many losses, the sums of `COUNTS`, `SPANS` and `MARKS`, and of how many each span is known."""
    lasted: dict[int, tuple[int, int]]
    """By minutes: how many placements were taken after so long, and how many were left otherwise, or stand yet."""

    def take(self, other: Counts) -> None:
        """Count others in."""
        for place, node_ms in other.stood.items():
            self.stood[place] = self.stood.get(place, 0) + node_ms
        for key, values in other.lost.items():
            known = self.lost.get(key)
            self.lost[key] = values if known is None else tuple(map(add, known, values))
        for minutes, (taken, left) in other.lasted.items():
            before = self.lasted.get(minutes, (0, 0))
            self.lasted[minutes] = before[0] + taken, before[1] + left

    def __add__(self, other: Counts) -> Counts:
        """Both together."""
        both = Counts(dict(self.stood), dict(self.lost), dict(self.lasted))
        both.take(other)
        return both


def _read(question: LossQuestion, connection: Connection, only: Only) -> Counts:
    """The counts of jobs that have ended."""
    stood = connection.execute(_stood(question, only))
    lost = connection.execute(_lost(question, only))
    lasted = connection.execute(_lasted(question, only))
    return Counts(
        {(zone, hour, kind): int(node_ms or 0) for zone, hour, kind, node_ms in stood},
        {
            ((zone, hour, kind), cause): tuple(int(value or 0) for value in values)
            for zone, hour, kind, cause, *values in lost
        },
        {minutes: (int(taken), count - int(taken)) for minutes, taken, count in lasted},
    )


def _grouped(
    table: Table, question: LossQuestion, hour: Any, *more: Any
) -> tuple[list[Any], list[Any]]:
    """Columns of what is told apart, and those to group by."""
    place = question.place(table.c.zone, hour, table.c.instance_type)
    columns = [null() if column is None else column for column in place]
    return [*columns, *more], [column for column in (*place, *more) if column is not None]


def _stood(question: LossQuestion, only: Only) -> Select[Any]:
    hours = ledger_hours.c
    columns, groups = _grouped(ledger_hours, question, hours.day_hour)
    query = select(*columns, func.sum(hours.node_ms)).where(*meant(ledger_hours, question, only))
    if question.since_ms is not None:
        query = query.where(hours.hour >= question.since_ms // MS_PER_HOUR)
    if question.before_ms is not None:
        query = query.where(hours.hour < question.before_ms // MS_PER_HOUR)
    return query.group_by(*groups)


def _lost(question: LossQuestion, only: Only) -> Select[Any]:
    table = ledger_placements.c
    columns, groups = _grouped(ledger_placements, question, table.end_hour, table.cause)
    sums = [func.count(), *(func.sum(table[name]) for name in (*COUNTS, *SPANS, *MARKS))]
    known = [func.count(table[name]) for name in SPANS]
    query = select(*columns, *sums, *known).where(table.cause.is_not(None)).group_by(*groups)
    return query.where(*meant(ledger_placements, question, only), *ends_within(question))


def _lasted(question: LossQuestion, only: Only) -> Select[Any]:
    table = ledger_placements.c
    taken = func.sum(case((table.cause.in_(TAKEN_WORDS), 1), else_=0))
    query = select(table.minutes, taken, func.count()).group_by(table.minutes)
    return query.where(*meant(ledger_placements, question, only), *ends_within(question))


def meant(table: Table, question: LossQuestion, only: Only = None) -> Iterator[ColumnElement[bool]]:
    """Of which rows a question is."""
    if only is not None:
        yield table.c.job_id.in_(only)
    if question.zone is not None:
        yield table.c.zone == question.zone
    if question.instance_type is not None:
        yield table.c.instance_type == question.instance_type
    if question.projects is not None:
        yield table.c.project.in_(question.projects)


def ends_within(question: LossQuestion) -> Iterator[ColumnElement[bool]]:
    """Which placements ended in the days of a question."""
    if question.since_ms is not None:
        yield ledger_placements.c.end_ms >= question.since_ms
    if question.before_ms is not None:
        yield ledger_placements.c.end_ms < question.before_ms


def _counted(item: LiveJob, chapters: Iterable[PlacementRecord], question: LossQuestion) -> Counts:
    """The counts of placements of a job that lives."""
    counts = Counts({}, {}, {})
    for chapter in chapters:
        if question.instance_type not in (None, chapter.instance_type):
            continue
        stood: Counter[Place] = Counter()
        for zone, hour, node_ms in chapter.hours:
            if question.zone in (None, zone) and question.takes(hour * MS_PER_HOUR):
                stood[question.place(zone, hour % 24, chapter.instance_type)] += node_ms
        counts.take(Counts(stood, {}, {}))
        if question.zone not in (None, chapter.zone):
            continue
        row = placement_row(item.known, chapter)
        is_within = question.takes(chapter.end_ms)
        if chapter.stands or is_within:
            ends = (1, 0) if chapter.is_preempted else (0, 1)
            counts.take(Counts({}, {}, {row["minutes"]: ends}))
        if chapter.cause is not None and is_within:
            place = question.place(chapter.zone, row["end_hour"], chapter.instance_type)
            known = (int(row[name] is not None) for name in SPANS)
            values = (1, *(row[name] or 0 for name in (*COUNTS, *SPANS, *MARKS)), *known)
            counts.take(Counts({}, {(place, chapter.cause.value): values}, {}))
    return counts


def _told(counts: Counts, question: LossQuestion) -> tuple[list[Losses], Losses]:
    """The sums, and the sum of all."""
    sums: dict[tuple[Place, str], Losses] = {}
    total = Losses()
    for place, node_ms in counts.stood.items():
        if question.by is not LossBy.CAUSE:
            _sum(sums, _place(place, question), "").node_ms += node_ms
        total.node_ms += node_ms
    for (place, cause), values in counts.lost.items():
        by_cause = question.by is LossBy.CAUSE
        losses = _sum(sums, _place(place, question), cause if by_cause else "")
        _count(losses, cause, values, is_meant=by_cause)
        _count(total, cause, values)
    if question.by is LossBy.CAUSE:
        for each in sums.values():
            each.node_ms = total.node_ms  # Any of them may be lost for any cause.
    return _sorted(sums.values()), total


def _place(place: Place, question: LossQuestion) -> Place:
    """The place of a sum, whose hours may be several."""
    zone, hour, kind = place
    return zone, None if hour is None else hour - hour % question.hours, kind


def _sum(sums: dict[tuple[Place, str], Losses], place: Place, cause: str) -> Losses:
    if (known := sums.get((place, cause))) is None:
        zone, hour, kind = place
        known = Losses(zone=zone, hour=hour, instance_type=kind, cause=cause or None)
        sums[place, cause] = known
    return known


def _count(losses: Losses, cause: str, values: Sequence[int], *, is_meant: bool = False) -> None:
    losses.causes[cause] += values[0]
    if not is_meant and cause not in TAKEN_WORDS:
        return
    losses.counted += values[0]
    names = (*COUNTS, *SPANS, *MARKS)
    told = dict(zip(names, values[1:], strict=False))
    losses.simulated |= bool(told.pop("simulated"))
    losses.is_price_estimate |= bool(told.pop("is_price_estimate"))
    losses.amounts.update(told)
    losses.known.update(dict(zip(SPANS, values[1 + len(names) :], strict=True)))


def _sorted(sums: Iterable[Losses]) -> list[Losses]:
    def order(each: Losses) -> tuple[int, int, str]:
        hour = -1 if each.hour is None else each.hour
        name = each.zone or each.instance_type or each.cause or ""
        return hour, -each.counted, name

    return sorted(sums, key=order)


def _midnight(day: date) -> int:
    return to_ms(datetime.combine(day, time(), tzinfo=UTC))
