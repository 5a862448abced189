"""What became of nodes, added up by zone, hour of day, instance type or cause: from rows, and from jobs that live."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Engine, Table, case, func, select

from holdfast.domain.chances import Step, survival
from holdfast.domain.chapters import Chapter
from holdfast.domain.events import TAKEN
from holdfast.domain.tariff import MS_PER_HOUR, to_ms
from holdfast.store.database import reading
from holdfast.store.ledgers import AT_ONCE, Kept, Ledgers, placement_row
from holdfast.store.schema import ledger_hours, ledger_placements

SPANS: Final = ("detect_ms", "wait_ms", "setup_ms", "restore_ms", "redo_ms", "notice_ms")
COUNTS: Final = ("is_noticed", "is_notice_used", "lost_steps", "lost_ms", "lost_micros")
MARKS: Final = ("simulated", "is_price_estimate")
_TAKEN: Final = tuple(sorted(cause.value for cause in TAKEN))

Place: TypeAlias = tuple[str, int, str]
"""Zone, hour of the day, instance type."""


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
    projects: Collection[str] | None = None
    """Only of these projects; None: of all."""

    @property
    def since_ms(self) -> int | None:
        """When that day begins, since 1970."""
        return None if self.since is None else _midnight(self.since)

    @property
    def before_ms(self) -> int | None:
        """When the last day is over, since 1970."""
        return None if self.until is None else _midnight(self.until + timedelta(days=1))


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
        return sum(self.causes[cause] for cause in _TAKEN)

    @property
    def node_hours(self) -> float:
        """How long nodes stood, all together."""
        return self.node_ms / MS_PER_HOUR

    def mean_s(self, span: str) -> float | None:
        """Seconds that one of `SPANS` took on average; None where none is known."""
        return self.amounts[span] / self.known[span] / 1000 if self.known[span] else None


@dataclass(frozen=True, slots=True)
class LossTold:
    """An answer."""

    sums: list[Losses]
    """The most losses first; by hour, in the order of the day."""
    total: Losses
    survival: list[Step]
    pending: int
    """Jobs that have ended and are not in it as they are now."""


class LossBook:
    """Sums over all placements."""

    def __init__(self, engine: Engine, ledgers: Ledgers) -> None:
        self._engine = engine
        self._ledgers = ledgers

    def ask(self, question: LossQuestion, now: datetime) -> LossTold:
        """The sums that were asked for, as of now."""
        self._ledgers.settle(AT_ONCE)
        live = self._ledgers.live(now)
        sums: dict[tuple[Any, ...], Losses] = {}
        total = Losses()
        for place, node_ms in [*self._stood(question), *_stood_live(live, question)]:
            if question.by is not LossBy.CAUSE:
                _sum(sums, place, "", question).node_ms += node_ms
            total.node_ms += node_ms
        for place, cause, values in [*self._lost(question), *_lost_live(live, question)]:
            _count(_sum(sums, place, cause, question), cause, values, question)
            _count(total, cause, values, LossQuestion(by=LossBy.ZONE))
        if question.by is LossBy.CAUSE:
            for each in sums.values():
                each.node_ms = total.node_ms  # Any of them may be lost for any cause.
        curve = survival(self._ended(question, live))
        return LossTold(_sorted(sums.values()), total, curve, self._ledgers.pending())

    def _stood(self, question: LossQuestion) -> list[tuple[Place, int]]:
        hours = ledger_hours.c
        of_day = hours.day_hour
        query = select(hours.zone, of_day, hours.instance_type, func.sum(hours.node_ms))
        query = query.where(*_meant(ledger_hours, question))
        if question.since_ms is not None:
            query = query.where(hours.hour >= question.since_ms // MS_PER_HOUR)
        if question.before_ms is not None:
            query = query.where(hours.hour < question.before_ms // MS_PER_HOUR)
        with reading(self._engine) as connection:
            rows = connection.execute(query.group_by(hours.zone, of_day, hours.instance_type))
            return [((zone, hour, kind), int(node_ms)) for zone, hour, kind, node_ms in rows]

    def _lost(self, question: LossQuestion) -> list[tuple[Place, str, list[int]]]:
        table = ledger_placements.c
        groups = (table.zone, table.end_hour, table.instance_type, table.cause)
        sums = [func.count(), *(func.sum(table[name]) for name in (*COUNTS, *SPANS))]
        known = [func.count(table[name]) for name in SPANS]
        marks = [func.max(table[name]) for name in MARKS]
        query = select(*groups, *sums, *known, *marks).where(table.cause.is_not(None))
        query = query.where(*_meant(ledger_placements, question), *_ends_within(question))
        with reading(self._engine) as connection:
            return [
                ((zone, hour, kind), cause, [int(value or 0) for value in values])
                for zone, hour, kind, cause, *values in connection.execute(query.group_by(*groups))
            ]

    def _ended(self, question: LossQuestion, live: Iterable[Kept]) -> list[tuple[int, int, int]]:
        """Minutes, and how many placements were taken after so long, or left otherwise, or stand yet."""
        table = ledger_placements.c
        minutes = table.minutes
        taken = func.sum(case((table.cause.in_(_TAKEN), 1), else_=0))
        query = select(minutes, taken, func.count())
        query = query.where(*_meant(ledger_placements, question), *_ends_within(question))
        ended: defaultdict[int, Counter[bool]] = defaultdict(Counter)
        with reading(self._engine) as connection:
            for lasted, lost, count in connection.execute(query.group_by(minutes)):
                ended[lasted] += Counter({True: int(lost), False: count - int(lost)})
        for item, chapter in _chapters(live, question):
            if chapter.stands or _is_within(chapter.end_ms, question):
                ended[placement_row(item, chapter)["minutes"]][chapter.is_taken] += 1
        return [(lasted, count[True], count[False]) for lasted, count in ended.items()]


def _meant(table: Table, question: LossQuestion) -> Iterator[ColumnElement[bool]]:
    if question.zone is not None:
        yield table.c.zone == question.zone
    if question.instance_type is not None:
        yield table.c.instance_type == question.instance_type
    if question.projects is not None:
        yield table.c.project.in_(question.projects)


def _ends_within(question: LossQuestion) -> Iterator[ColumnElement[bool]]:
    if question.since_ms is not None:
        yield ledger_placements.c.end_ms >= question.since_ms
    if question.before_ms is not None:
        yield ledger_placements.c.end_ms < question.before_ms


def _chapters(live: Iterable[Kept], question: LossQuestion) -> Iterator[tuple[Kept, Chapter]]:
    for item in live:
        if question.projects is not None and item.project not in question.projects:
            continue
        for chapter in item.chapters:
            fits = question.zone in (None, chapter.zone)
            if fits and question.instance_type in (None, chapter.instance_type):
                yield item, chapter


def _stood_live(live: Iterable[Kept], question: LossQuestion) -> Iterator[tuple[Place, int]]:
    for item in live:
        if question.projects is not None and item.project not in question.projects:
            continue
        for chapter in item.chapters:
            if question.instance_type not in (None, chapter.instance_type):
                continue
            for zone, hour, node_ms in chapter.hours:
                if question.zone in (None, zone) and _is_within(hour * MS_PER_HOUR, question):
                    yield (zone, hour % 24, chapter.instance_type), node_ms


def _lost_live(
    live: Iterable[Kept], question: LossQuestion
) -> Iterator[tuple[Place, str, list[int]]]:
    for item, chapter in _chapters(live, question):
        if chapter.cause is None or not _is_within(chapter.end_ms, question):
            continue
        row = placement_row(item, chapter)
        place = chapter.zone, row["end_hour"], chapter.instance_type
        values = [1, *(row[name] or 0 for name in (*COUNTS, *SPANS))]
        values += [*(row[name] is not None for name in SPANS), *(row[name] for name in MARKS)]
        yield place, chapter.cause.value, values


def _sum(
    sums: dict[tuple[Any, ...], Losses], place: Place, cause: str, question: LossQuestion
) -> Losses:
    zone, hour, kind = place
    told: dict[LossBy, tuple[str | None, int | None, str | None, str | None]] = {
        LossBy.ZONE: (zone, None, None, None),
        LossBy.HOUR: (None, hour, None, None),
        LossBy.TYPE: (None, None, kind, None),
        LossBy.CAUSE: (None, None, None, cause),
        LossBy.ZONE_HOUR: (zone, hour, None, None),
    }
    key = told[question.by]
    if (known := sums.get(key)) is None:
        of_zone, of_hour, of_kind, of_cause = key
        known = Losses(zone=of_zone, hour=of_hour, instance_type=of_kind, cause=of_cause)
        sums[key] = known
    return known


def _count(losses: Losses, cause: str, values: list[int], question: LossQuestion) -> None:
    losses.causes[cause] += values[0]
    if question.by is not LossBy.CAUSE and cause not in _TAKEN:
        return
    losses.counted += values[0]
    names = (*COUNTS, *SPANS)
    losses.amounts.update(dict(zip(names, values[1:], strict=False)))
    losses.known.update(dict(zip(SPANS, values[1 + len(names) :], strict=False)))
    simulated, estimate = values[-len(MARKS) :]
    losses.simulated |= bool(simulated)
    losses.is_price_estimate |= bool(estimate)


def _sorted(sums: Iterable[Losses]) -> list[Losses]:
    def order(each: Losses) -> tuple[int, int, str]:
        hour = -1 if each.hour is None else each.hour
        name = each.zone or each.instance_type or each.cause or ""
        return hour, -each.counted, name

    return sorted(sums, key=order)


def _is_within(at_ms: int, question: LossQuestion) -> bool:
    since, before = question.since_ms, question.before_ms
    return (since is None or at_ms >= since) and (before is None or at_ms < before)


def _midnight(day: date) -> int:
    return to_ms(datetime.combine(day, time(), tzinfo=UTC))
