"""Sums of costs by job, attempt, user, project, tag, zone or day.

The database sums up the rows of closed jobs; live jobs are added here. No log is folded for a sum.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    String,
    and_,
    cast,
    func,
    literal_column,
    select,
)

from holdfast.domain.billing.phases import Phases
from holdfast.store.billing.bills import MAX_PER_REQUEST, BillRollups, JobHistory, LiveJob
from holdfast.store.billing.live_bills import AllocationRow
from holdfast.store.billing.rollup_cache import MAX_ANSWER_LENGTH, Only
from holdfast.store.database import reading
from holdfast.store.tables.billing import ledger_shares, ledger_tags, ledgers

AMOUNTS: Final = (
    *(
        "waiting_ms",
        "setup_ms",
        "restore_ms",
        "useful_ms",
        "stalled_ms",
        "lost_ms",
        "unmeasured_ms",
    ),
    "node_ms",
    *("setup_micros", "restore_micros", "useful_micros", "stalled_micros", "lost_micros"),
    "unmeasured_micros",
    *("adjusted_micros", "on_demand_micros"),
)
PAID: Final = tuple(
    name for name in AMOUNTS if name.endswith("_micros") and name != "on_demand_micros"
)
PRICE_FLAGS: Final = ("simulated", "is_price_estimate")


class GroupBy(StrEnum):
    """Dimension of a sum."""

    JOB = "job"
    ATTEMPT = "attempt"
    USER = "user"
    PROJECT = "project"
    TAG = "tag"
    ZONE = "zone"
    DAY = "day"


@dataclass(frozen=True, kw_only=True, slots=True)
class CostRequest:
    """A request for sums of costs."""

    by: GroupBy
    then_by: GroupBy | None = None
    """Second dimension; None: none. It differs from `by`, and is neither JOB nor ATTEMPT."""
    tag: str = ""
    """The tag whose values are distinguished; empty unless one of the two is TAG."""
    since: date | None = None
    """First day, in UTC; None: unlimited."""
    until: date | None = None
    """Last day, in UTC; None: until now."""
    projects: frozenset[str] | None = None
    """Only these projects; None: all."""
    limit: int = 1000
    """Maximum number of sums."""

    @property
    def grand_total(self) -> CostRequest:
        """The request for the sum over everything."""
        return replace(self, by=GroupBy.DAY, then_by=None, tag="", limit=0)

    @property
    def dimensions(self) -> tuple[GroupBy, ...]:
        """All dimensions of the sums."""
        return (self.by, self.then_by) if self.then_by else (self.by,)

    def includes(self, day: date) -> bool:
        """Whether a day is within the request."""
        since, until = self.since, self.until
        return (since is None or day >= since) and (until is None or day <= until)

    @property
    def is_long(self) -> bool:
        """Whether there are at least as many sums as jobs.

        The database then omits the sums that are not displayed.
        """
        return self.by in {GroupBy.JOB, GroupBy.ATTEMPT}


@dataclass(slots=True)
class CostTotal:
    """Cost totals of a job, attempt, user, project, tag, zone or day."""

    key: str
    """`<job>/<attempt>` for attempts; empty without a user, tag or zone."""
    label: str = ""
    """Name of the job; otherwise empty."""
    part: str = ""
    """Value of the second dimension, written like `key`; empty without one."""
    jobs: int = 0
    amounts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(AMOUNTS, 0))
    simulated: bool = False
    is_price_estimate: bool = False

    @property
    def ms(self) -> Phases:
        """Provisioned milliseconds by phase."""
        return self._phases("ms")

    @property
    def micros(self) -> Phases:
        """Cost by phase in micro-dollars, before provider rules."""
        return self._phases("micros")

    @property
    def paid_micros(self) -> int:
        """Cost in micro-dollars, by provider rules."""
        return sum(self.amounts[name] for name in PAID)

    @property
    def wasted_micros(self) -> int:
        """Cost of all measured phases except useful work."""
        return self.micros.wasted

    @property
    def saved_micros(self) -> int:
        """Savings compared to on-demand prices; may be negative."""
        return self.amounts["on_demand_micros"] - self.paid_micros

    @property
    def group_key(self) -> tuple[str, str]:
        """Key and part, which identify the sum."""
        return self.key, self.part

    def add(self, other: CostTotal) -> None:
        """Add the sum of other jobs."""
        self.jobs += other.jobs
        for name in AMOUNTS:
            self.amounts[name] += other.amounts[name]
        self.simulated |= other.simulated
        self.is_price_estimate |= other.is_price_estimate

    def copy(self) -> CostTotal:
        """A copy, to which others can be added."""
        return replace(self, amounts=dict(self.amounts))

    def _phases(self, unit: str) -> Phases:
        of = self.amounts
        return Phases(
            setup=of[f"setup_{unit}"],
            restore=of[f"restore_{unit}"],
            useful=of[f"useful_{unit}"],
            stalled=of[f"stalled_{unit}"],
            lost=of[f"lost_{unit}"],
            unmeasured=of[f"unmeasured_{unit}"],
        )


@dataclass(frozen=True, slots=True)
class CostReport:
    """The sums of a request."""

    totals: list[CostTotal]
    """Most expensive first; days in order."""
    left_out: int
    """Number of omitted sums."""
    total: CostTotal
    pending: int
    """Closed jobs that are not included with their current values: repeat the request later."""


class CostQueries:
    """Cost queries over all jobs."""

    def __init__(self, engine: Engine, ledgers: BillRollups) -> None:
        self._engine = engine
        self._ledgers = ledgers

    def totals(self, question: CostRequest, now: datetime) -> CostReport:
        """The requested sums, as of now."""
        self._ledgers.roll_up(MAX_PER_REQUEST)
        ended = self._ended_totals(question)
        sums = {cost.group_key: cost.copy() for cost in ended.costs}
        in_all = "total", question.grand_total
        total = self._ledgers.cache.get(in_all, partial(_total, question), _merge_totals).copy()
        for item in self._ledgers.live_jobs(now):
            _add_live(sums, total, item, question)
        oldest_first = question.by is GroupBy.DAY
        order = sorted(
            sums.values(),
            key=lambda c: (0 if oldest_first else -c.paid_micros, c.key, -c.paid_micros, c.part),
        )
        shown = order[: question.limit]
        count = ended.left_out + len(sums) - len(shown)
        return CostReport(shown, count, total, self._ledgers.pending())

    def _ended_totals(self, question: CostRequest) -> _EndedTotals:
        """The sums over closed jobs."""
        if not question.is_long:  # The database returns all of them.
            question = replace(question, limit=0)
        elif question.limit > MAX_ANSWER_LENGTH:
            with reading(self._engine) as connection:
                return _read(question, connection, None)
        read, more = partial(_read, question), partial(_merge_ended, question)
        found: _EndedTotals = self._ledgers.cache.get(question, read, more)
        return found


@dataclass(frozen=True, slots=True)
class _EndedTotals:
    """Sums over closed jobs; only the most expensive ones of a long answer."""

    costs: Sequence[CostTotal]
    left_out: int

    def __len__(self) -> int:
        return len(self.costs)


def _read(question: CostRequest, connection: Connection, only: Only) -> _EndedTotals:
    key = _key(question.by)
    part = _key(question.then_by) if question.then_by else literal_column("''")
    name = func.max(ledgers.c.name) if question.by is GroupBy.JOB else literal_column("''")
    by = [ledger_shares.c.job_id] if question.is_long else [key]
    by += [ledger_shares.c.attempt] if question.by is GroupBy.ATTEMPT else []
    by += [part] if question.then_by else []
    within = _conditions(question, only)
    # The count over the groups is the number of groups before the limit.
    query = select(func.count().over(), key, name, part, *_sums()).where(*within).group_by(*by)
    query = query.select_from(_tables(question))
    if question.is_long:
        query = query.order_by(_paid().desc(), *by).limit(question.limit)
    rows = connection.execute(query).all()
    found = [_cost_total(row[1:4], row[4:]) for row in rows]
    return _EndedTotals(found, rows[0][0] - len(found) if rows else 0)


def _merge_ended(question: CostRequest, known: _EndedTotals, more: _EndedTotals) -> _EndedTotals:
    """Known sums, with those of jobs whose rows were added since."""
    if question.is_long:
        # Each job has its own sums.
        both = sorted([*known.costs, *more.costs], key=lambda cost: -cost.paid_micros)
        shown = both[: question.limit]
        return _EndedTotals(shown, known.left_out + more.left_out + len(both) - len(shown))
    sums = {cost.group_key: cost for cost in known.costs}
    for cost in more.costs:
        sums[cost.group_key] = (
            _merge_totals(sums[cost.group_key], cost) if cost.group_key in sums else cost
        )
    return _EndedTotals(list(sums.values()), 0)


def _total(question: CostRequest, connection: Connection, only: Only) -> CostTotal:
    query = (
        select(*_sums())
        .select_from(_tables(question.grand_total))
        .where(*_conditions(question, only))
    )
    return _cost_total(("", "", ""), connection.execute(query).one())


def _merge_totals(known: CostTotal, more: CostTotal) -> CostTotal:
    cost = known.copy()
    cost.add(more)
    return cost


def _key(by: GroupBy) -> ColumnElement[Any]:
    shares = ledger_shares.c
    keys: dict[GroupBy, ColumnElement[Any]] = {
        GroupBy.JOB: shares.job_id,
        GroupBy.ATTEMPT: func.max(shares.job_id + "/" + cast(shares.attempt, String)),
        GroupBy.USER: ledgers.c.owner,
        GroupBy.PROJECT: ledgers.c.project,
        GroupBy.TAG: func.coalesce(ledger_tags.c.value, ""),
        GroupBy.ZONE: shares.zone,
        GroupBy.DAY: shares.day,
    }
    return keys[by]


def _tables(question: CostRequest) -> FromClause:
    """Only the table of allocations where it is sufficient: the others are slower."""
    tables: FromClause = ledger_shares
    of_jobs = {GroupBy.JOB, GroupBy.USER, GroupBy.PROJECT}
    if question.projects is not None or not of_jobs.isdisjoint(question.dimensions):
        tables = tables.join(ledgers, ledgers.c.job_id == ledger_shares.c.job_id)
    if GroupBy.TAG in question.dimensions:
        mine = and_(
            ledger_tags.c.job_id == ledger_shares.c.job_id, ledger_tags.c.name == question.tag
        )
        tables = tables.outerjoin(ledger_tags, mine)
    return tables


def _conditions(question: CostRequest, only: Only) -> Iterator[ColumnElement[bool]]:
    if only is not None:
        yield ledger_shares.c.job_id.in_(only)
    if question.since is not None:
        yield ledger_shares.c.day >= question.since.isoformat()
    if question.until is not None:
        yield ledger_shares.c.day <= question.until.isoformat()
    if question.projects is not None:
        yield ledgers.c.project.in_(question.projects)


def _sums() -> Iterator[ColumnElement[Any]]:
    yield func.count(ledger_shares.c.job_id.distinct())
    for name in AMOUNTS:
        yield func.sum(ledger_shares.c[name])
    for name in PRICE_FLAGS:
        yield func.max(ledger_shares.c[name])


def _paid() -> ColumnElement[Any]:
    return func.sum(functools.reduce(operator.add, (ledger_shares.c[name] for name in PAID)))


def _cost_total(names: Iterable[str | None], values: Iterable[Any]) -> CostTotal:
    """Build a sum from its key, label, part and the columns of `_sums`.

    Without rows the database returns NULL, which counts as 0.
    """
    key, label, part = (name or "" for name in names)
    count, *rest = (int(value or 0) for value in values)
    amounts = dict(zip(AMOUNTS, rest, strict=False))
    simulated, estimate = rest[len(AMOUNTS) :]
    return CostTotal(key, label, part, count, amounts, bool(simulated), bool(estimate))


def _add_live(
    sums: dict[tuple[str, str], CostTotal], total: CostTotal, item: LiveJob, question: CostRequest
) -> None:
    if question.projects is not None and item.history.project not in question.projects:
        return
    closed = item.cached(question, lambda: _live_totals(item, item.closed_rows, question))
    opened = _live_totals(item, item.open_rows, question)
    for parts in (closed, opened):
        for part in parts:
            if (known := sums.get(part.group_key)) is None:
                sums[part.group_key] = part.copy()
            else:
                known.add(part)
            total.add(part)
    # It is one job, regardless of its number of parts.
    places = Counter(part.group_key for part in (*closed, *opened))
    for place, count in places.items():
        sums[place].jobs -= count - 1
    total.jobs -= max(0, places.total() - 1)


def _live_totals(
    item: LiveJob, rows: Iterable[AllocationRow], question: CostRequest
) -> list[CostTotal]:
    """Sums over these rows of a job, by key and part."""
    parts: dict[tuple[str, str], CostTotal] = {}
    for share, row in rows:
        if question.includes(share.day):
            key, within = _live_keys(item.history, row, question)
            label = item.history.name if question.by is GroupBy.JOB else ""
            part = CostTotal(
                key, label, within, 0, dict(row), share.simulated, share.is_price_estimate
            )
            parts.setdefault(part.group_key, CostTotal(key, label, within, 1)).add(part)
    return list(parts.values())


def _live_keys(known: JobHistory, row: Mapping[str, Any], question: CostRequest) -> tuple[str, str]:
    """Key and part of a row."""
    keys: dict[GroupBy, str] = {
        GroupBy.JOB: known.job_id,
        GroupBy.ATTEMPT: f"{known.job_id}/{row['attempt']}",
        GroupBy.USER: known.owner,
        GroupBy.PROJECT: known.project,
        GroupBy.TAG: known.tags.get(question.tag, ""),
        GroupBy.ZONE: row["zone"],
        GroupBy.DAY: row["day"],
    }
    return keys[question.by], keys[question.then_by] if question.then_by else ""
