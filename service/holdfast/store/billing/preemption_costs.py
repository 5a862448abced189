"""Preemptions by notice, job and day, and past lifetimes of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from typing import Any, Final, TypeAlias

from sqlalchemy import BigInteger, ColumnElement, Connection, case, func, literal, select
from sqlalchemy import Engine as Database

from holdfast.domain.billing.rate import MS_PER_HOUR
from holdfast.domain.events import DRILL
from holdfast.domain.jobfile.spec import Engine, engine_of
from holdfast.domain.jobfile.spot_safety import HistoricalLifetimes, node_kind
from holdfast.domain.preemptions.placements import PlacementRecord
from holdfast.store import event_log
from holdfast.store.billing.bills import MAX_PER_REQUEST, BillRollups, LiveJob, placement_row
from holdfast.store.billing.preemptions import (
    PREEMPTION_CAUSE_VALUES,
    LossRequest,
    conditions,
    ends_within,
)
from holdfast.store.billing.rollup_cache import Only
from holdfast.store.database import reading
from holdfast.store.tables.billing import ledger_placements, ledgers
from holdfast.store.tables.jobs import job_events, jobs

MAX_JOBS: Final = 200
"""Jobs that are examined. A lower value ignores last month; a higher value delays submissions."""


def historical_lifetimes(database: Database, kind: str) -> HistoricalLifetimes:
    """Lifetimes of nodes of a kind (a `kind_of`) in the newest jobs with such nodes."""
    newest = (
        select(jobs.c.id, jobs.c.fold, job_events.c.body)
        .join(job_events, (job_events.c.job_id == jobs.c.id) & (job_events.c.seq == 1))
        .order_by(jobs.c.submitted_at.desc())
        .limit(MAX_JOBS)
    )
    node_ms = losses = 0
    with reading(database) as connection:
        for row in connection.execute(newest):
            resources = row.body["spec"].get("resources", {})
            if engine_of(resources) is not Engine.SKYPILOT or node_kind(resources) != kind:
                continue
            if (row.body["spec"].get("holdfast") or {}).get("groups"):
                continue  # Its attempts and losses are those of different kinds of nodes.
            job = event_log.load(connection, row.id, row.fold)
            node_ms += job.account.node_ms
            losses += job.preemptions - job.drills
    return HistoricalLifetimes(node_ms / 1000, losses)


SPANS_S: Final = ((0.0, 10.0), (10.0, 30.0), (30.0, 60.0), (60.0, 120.0), (120.0, None))
"""Ranges of notice in seconds: longer than the first number, at most the second. AWS gives 120, GCP
30."""
_MS_PER_DAY: Final = 24 * MS_PER_HOUR
_EPOCH: Final = date(1970, 1, 1).toordinal()
_FLAGS: Final = ("is_noticed", "is_notice_used", "simulated", "is_price_estimate")
_SAME: Final = (
    *("job_id", "attempt", "part", "node", "node_group", "zone", "instance_type", "cause"),
    *("notice_ms", "lost_steps", "lost_ms", "lost_micros", "wait_ms", *_FLAGS),
)
"""Columns of `ledger_placements` that a preemption has under the same name."""

DayCounts: TypeAlias = dict[int, tuple[int, int, int]]
"""By days since 1970: preemptions, those with notice, and those with a checkpoint after the notice."""
_WITHOUT_NOTICE: Final = -1
_UNSPECIFIED: Final = -2


@dataclass(frozen=True, slots=True)
class NoticeHistogram:
    """Preemptions by notice: pairs of their number and of those with a checkpoint after it."""

    without_notice: int
    unspecified: tuple[int, int]
    """With a notice of unknown length."""
    by_span: tuple[tuple[int, int], ...]
    """By `SPANS_S`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPreemptionCost:
    """Losses of one job by preemptions."""

    job_id: str
    name: str
    project: str
    taken: int
    lost_steps: int
    lost_ms: int
    lost_micros: int
    wait_ms: int
    """Total time without nodes after them."""
    simulated: bool
    is_price_estimate: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemption:
    """One preemption of one job. A field is None where its value is unknown."""

    at_ms: int
    """Loss of the nodes, since 1970."""
    job_id: str
    name: str
    project: str
    attempt: int
    part: int
    """0 for the end of the placement; the losses of single nodes before it are numbered from 1."""
    node: int | None
    """The lost node; None if all were lost at once."""
    node_group: str
    """The lost node group; empty for a job without groups."""
    zone: str
    instance_type: str
    cause: str
    is_noticed: bool
    notice_ms: int | None
    is_notice_used: bool
    lost_steps: int
    lost_ms: int
    lost_micros: int
    wait_ms: int | None
    """Time without nodes after it; for a single node, until it was replaced or the others ended."""
    simulated: bool
    is_price_estimate: bool

    @property
    def is_drill(self) -> bool:
        """Whether a user requested it."""
        return self.cause == DRILL


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionDay:
    """Preemptions of one day in UTC."""

    day: date
    taken: int
    noticed: int
    notice_used: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionHistory:
    """Preemptions by day, the oldest day first, and the newest single ones, newest first."""

    days: tuple[PreemptionDay, ...]
    newest: list[Preemption]


class PreemptionCostQueries:
    """Queries about preemptions: of closed jobs from rows, of live jobs as of now."""

    def __init__(self, ledgers: BillRollups) -> None:
        self._ledgers = ledgers

    def notices(self, question: LossRequest, now: datetime) -> NoticeHistogram:
        """Preemptions by length of the notice."""
        self._ledgers.roll_up(MAX_PER_REQUEST)
        key = "notices", question
        taken, used = self._ledgers.cache.get(key, partial(_read_notices, question), _merge_notices)
        taken, used = Counter(taken), Counter(used)
        for item in self._ledgers.live_jobs(now):
            for placement in _preempted_placements(item, question):
                number = (
                    _span_index(placement.notice_ms) if placement.is_noticed else _WITHOUT_NOTICE
                )
                taken[number] += 1
                used[number] += placement.is_notice_used
        by_span = tuple((taken[n], used[n]) for n in range(len(SPANS_S)))
        return NoticeHistogram(
            taken[_WITHOUT_NOTICE], (taken[_UNSPECIFIED], used[_UNSPECIFIED]), by_span
        )

    def most_expensive(
        self, question: LossRequest, now: datetime, limit: int
    ) -> list[JobPreemptionCost]:
        """The jobs with the most expensive lost work, in this order; at most `limit`."""
        self._ledgers.roll_up(MAX_PER_REQUEST)
        key = "tolls", question, limit
        read, more = partial(_read_costs, question, limit), partial(_most_expensive, limit)
        ended = self._ledgers.cache.get(key, read, more)
        live = (
            _live_cost(item, _preempted_placements(item, question))
            for item in self._ledgers.live_jobs(now)
        )
        return _most_expensive(limit, ended, [cost for cost in live if cost.taken])

    def history(self, question: LossRequest, now: datetime, limit: int) -> PreemptionHistory:
        """Preemptions by day, and the newest `limit` single ones.

        Drills are among the single ones, and no day counts them.
        """
        self._ledgers.roll_up(MAX_PER_REQUEST)
        days = self._ledgers.cache.get(("days", question), partial(_read_days, question), _by_day)
        read, more = partial(_read_newest, question, limit), partial(_newest, limit)
        newest = self._ledgers.cache.get(("newest", question, limit), read, more)
        for item in self._ledgers.live_jobs(now):
            listed = [
                _preemption_of(item, placement)
                for placement in _preempted_placements(item, question, with_drills=True)
            ]
            newest = _newest(limit, newest, listed)
            days = _by_day(days, _days_of(one for one in listed if not one.is_drill))
        return PreemptionHistory(
            days=tuple(
                PreemptionDay(
                    day=date.fromordinal(_EPOCH + day),
                    taken=counts[0],
                    noticed=counts[1],
                    notice_used=counts[2],
                )
                for day, counts in sorted(days.items())
            ),
            newest=newest,
        )


def _read_days(question: LossRequest, connection: Connection, only: Only) -> DayCounts:
    table = ledger_placements.c
    # Of type BIGINT on both sides: PostgreSQL then divides without a remainder, as SQLite does.
    day = (table.end_ms // literal(_MS_PER_DAY, BigInteger)).label("day")
    sums = func.count(), func.sum(table.is_noticed), func.sum(table.is_notice_used)
    query = select(day, *sums).group_by("day").where(*_conditions(question, only))
    return {
        int(number): (int(taken), int(noticed), int(used))
        for number, taken, noticed, used in connection.execute(query)
    }


def _days_of(preemptions: Iterable[Preemption]) -> DayCounts:
    days: DayCounts = {}
    for one in preemptions:
        counts = {one.at_ms // _MS_PER_DAY: (1, int(one.is_noticed), int(one.is_notice_used))}
        days = _by_day(days, counts)
    return days


def _by_day(known: DayCounts, more: DayCounts) -> DayCounts:
    none = (0, 0, 0)
    days = known.keys() | more.keys()
    pairs = {day: zip(known.get(day, none), more.get(day, none), strict=True) for day in days}
    return {day: (sum(a), sum(b), sum(c)) for day, (a, b, c) in pairs.items()}


def _read_newest(
    question: LossRequest, limit: int, connection: Connection, only: Only
) -> list[Preemption]:
    table = ledger_placements.c
    same = [table[name] for name in _SAME]
    query = select(table.end_ms.label("at_ms"), ledgers.c.name, ledgers.c.project, *same)
    query = query.join(ledgers, ledgers.c.job_id == table.job_id).where(
        *_conditions(question, only, with_drills=True)
    )
    query = query.order_by(table.end_ms.desc(), table.job_id, table.attempt, table.part).limit(
        limit
    )
    return [_preemption(row) for row in connection.execute(query).mappings()]


def _preemption(row: Mapping[Any, Any]) -> Preemption:
    return Preemption(**{**row, **{name: bool(row[name]) for name in _FLAGS}})


def _preemption_of(item: LiveJob, placement: PlacementRecord) -> Preemption:
    row = placement_row(item.history, placement)
    same = {name: row[name] for name in _SAME}
    known = {"at_ms": row["end_ms"], "name": item.history.name, "project": item.history.project}
    return _preemption(known | same)


def _newest(
    limit: int, known: Iterable[Preemption], more: Iterable[Preemption]
) -> list[Preemption]:
    order = sorted([*known, *more], key=lambda one: (-one.at_ms, one.job_id, one.attempt, one.part))
    return order[:limit]


def _read_notices(
    question: LossRequest, connection: Connection, only: Only
) -> tuple[Counter[int], Counter[int]]:
    """Count preemptions by notice, and those with a checkpoint after it."""
    table = ledger_placements.c
    span = case(
        (table.is_noticed == 0, _WITHOUT_NOTICE),
        (table.notice_ms.is_(None), _UNSPECIFIED),
        *((table.notice_ms <= 1000 * until, n) for n, (_, until) in enumerate(SPANS_S) if until),
        else_=len(SPANS_S) - 1,
    ).label("span")
    query = select(span, func.count(), func.sum(table.is_notice_used)).group_by("span")
    query = query.where(*_conditions(question, only))
    taken, used = Counter[int](), Counter[int]()
    for number, count, saved in connection.execute(query):
        taken[number], used[number] = int(count), int(saved)
    return taken, used


def _merge_notices(
    known: tuple[Counter[int], Counter[int]], more: tuple[Counter[int], Counter[int]]
) -> tuple[Counter[int], Counter[int]]:
    return known[0] + more[0], known[1] + more[1]


def _read_costs(
    question: LossRequest, limit: int, connection: Connection, only: Only
) -> list[JobPreemptionCost]:
    table = ledger_placements.c
    lost = func.sum(table.lost_micros)
    sums = [func.count(), *(func.sum(c) for c in (table.lost_steps, table.lost_ms)), lost]
    sums += [func.coalesce(func.sum(table.wait_ms), 0)]
    sums += [func.max(table.simulated), func.max(table.is_price_estimate)]
    query = select(table.job_id, ledgers.c.name, ledgers.c.project, *sums)
    query = query.join(ledgers, ledgers.c.job_id == table.job_id).where(
        *_conditions(question, only)
    )
    query = query.group_by(table.job_id, ledgers.c.name, ledgers.c.project)
    query = query.order_by(lost.desc(), func.count().desc(), table.job_id).limit(limit)
    return [_cost_from_row(*row) for row in connection.execute(query)]


def _conditions(
    question: LossRequest, only: Only, *, with_drills: bool = False
) -> Iterator[ColumnElement[bool]]:
    causes = (*PREEMPTION_CAUSE_VALUES, DRILL) if with_drills else PREEMPTION_CAUSE_VALUES
    yield ledger_placements.c.cause.in_(causes)
    yield from conditions(ledger_placements, question, only)
    yield from ends_within(question)


def _most_expensive(
    limit: int, known: Iterable[JobPreemptionCost], more: Iterable[JobPreemptionCost]
) -> list[JobPreemptionCost]:
    """The most expensive jobs of both; no job is in both."""
    order = sorted([*known, *more], key=lambda cost: (-cost.lost_micros, -cost.taken, cost.job_id))
    return order[:limit]


def _preempted_placements(
    item: LiveJob, question: LossRequest, *, with_drills: bool = False
) -> list[PlacementRecord]:
    """The preempted placements of a live job within the request."""
    if question.projects is not None and item.history.project not in question.projects:
        return []
    return [
        placement
        for placement in item.placements
        if (placement.is_preempted or (with_drills and placement.is_drill))
        and question.zone in (None, placement.zone)
        and question.instance_type in (None, placement.instance_type)
        and question.includes(placement.end_ms)
    ]


def _live_cost(item: LiveJob, placements: Iterable[PlacementRecord]) -> JobPreemptionCost:
    cost = _cost_from_row(item.history.job_id, item.history.name, item.history.project, *([0] * 7))
    for placement in placements:
        cost = replace(
            cost,
            taken=cost.taken + 1,
            lost_steps=cost.lost_steps + placement.lost_steps,
            lost_ms=cost.lost_ms + placement.lost_ms,
            lost_micros=cost.lost_micros + placement.lost_micros,
            wait_ms=cost.wait_ms + (placement.wait_ms or 0),
            simulated=cost.simulated or placement.simulated,
            is_price_estimate=cost.is_price_estimate or placement.is_price_estimate,
        )
    return cost


def _span_index(notice_ms: int | None) -> int:
    if notice_ms is None:
        return _UNSPECIFIED
    within = (
        n
        for n, (_, until_s) in enumerate(SPANS_S)
        if until_s is None or notice_ms <= 1000 * until_s
    )
    return next(within)


def _cost_from_row(job_id: str, name: str, project: str, *sums: int) -> JobPreemptionCost:
    taken, lost_steps, lost_ms, lost_micros, wait_ms, simulated, is_price_estimate = map(int, sums)
    return JobPreemptionCost(
        job_id=job_id,
        name=name,
        project=project,
        taken=taken,
        lost_steps=lost_steps,
        lost_ms=lost_ms,
        lost_micros=lost_micros,
        wait_ms=wait_ms,
        simulated=bool(simulated),
        is_price_estimate=bool(is_price_estimate),
    )
