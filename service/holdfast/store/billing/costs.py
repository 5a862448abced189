"""Sums of costs by job, attempt, user, project, tag, zone or day.

The database sums up the rows of closed jobs; live jobs are added here. No log is folded for a sum.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    String,
    and_,
    case,
    cast,
    func,
    literal_column,
    select,
)

from holdfast.domain.billing.allocation import CostAllocation
from holdfast.domain.billing.phases import Phases
from holdfast.domain.charges.charges import Category
from holdfast.store.billing.bills import MAX_PER_REQUEST, BillRollups, JobHistory, LiveJob
from holdfast.store.billing.charge_rows import CHARGES
from holdfast.store.billing.cost_request import CostRequest, GroupBy
from holdfast.store.billing.kept_storage import KeptAmount, kept_amounts
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
STORAGE: Final = f"{Category.STORAGE}_micros"
FLAGS: Final = ("simulated", "is_price_estimate", "has_unpriced")


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
    charges: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHARGES, 0))
    """What is beside the nodes, by column."""
    has_unpriced: bool = False
    """Whether something beside the nodes has no known price."""

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
    def charged_micros(self) -> int:
        """Cost beside the nodes, as far as prices are known."""
        return sum(self.charges.values())

    @property
    def total_micros(self) -> int:
        """Cost of the nodes and beside them."""
        return self.paid_micros + self.charged_micros

    @property
    def group_key(self) -> tuple[str, str]:
        """Key and part, which identify the sum."""
        return self.key, self.part

    def add(self, other: CostTotal) -> None:
        """Add the sum of other jobs."""
        self.jobs += other.jobs
        for name in AMOUNTS:
            self.amounts[name] += other.amounts[name]
        for name in CHARGES:
            self.charges[name] += other.charges[name]
        self.simulated |= other.simulated
        self.is_price_estimate |= other.is_price_estimate
        self.has_unpriced |= other.has_unpriced

    def add_storage(self, micros: int, *, is_unpriced: bool) -> None:
        """Add what stored checkpoints cost."""
        self.charges[STORAGE] += micros
        self.has_unpriced |= is_unpriced

    def copy(self) -> CostTotal:
        """A copy, to which others can be added."""
        return replace(self, amounts=dict(self.amounts), charges=dict(self.charges))

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
    """Most expensive nodes first; days in order."""
    left_out: int
    """Number of omitted sums."""
    total: CostTotal
    pending: int
    """Closed jobs that are not included with their current values: repeat the request later."""


@dataclass(frozen=True, slots=True)
class JobSet:
    """Ids of jobs, as a cached answer of any size."""

    ids: frozenset[str]


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
        left_out = self._add_kept(sums, total, ended.left_out, question, now)
        oldest_first = question.by is GroupBy.DAY
        order = sorted(
            sums.values(),
            key=lambda c: (
                *((c.key,) if oldest_first else ()),
                *(-c.paid_micros, -c.charged_micros, c.key, c.part),
            ),
        )
        shown = order[: question.limit]
        count = left_out + len(sums) - len(shown)
        return CostReport(shown, count, total, self._ledgers.pending())

    def _add_kept(
        self,
        sums: dict[tuple[str, str], CostTotal],
        total: CostTotal,
        left_out: int,
        question: CostRequest,
        now: datetime,
    ) -> int:
        """Add what closed jobs keep in their stores; return the number of omitted sums."""
        amounts = kept_amounts(self._ledgers.cache, question, now)
        unknown = list[KeptAmount]()
        for amount in amounts:
            total.add_storage(amount.micros, is_unpriced=amount.is_unpriced)
            if (known := sums.get((amount.key, amount.part))) is not None:
                known.add_storage(amount.micros, is_unpriced=amount.is_unpriced)
            else:
                unknown.append(amount)
        if left_out:
            # A sum of the database that is omitted, or one more; neither has nodes of any cost.
            jobs = {amount.job_id for amount in unknown}
            return left_out + len(jobs - self._jobs_with_rows(question))
        for amount in unknown:
            new = CostTotal(amount.key, amount.label, amount.part)
            sums.setdefault(new.group_key, new).add_storage(
                amount.micros, is_unpriced=amount.is_unpriced
            )
        return 0

    def _jobs_with_rows(self, question: CostRequest) -> frozenset[str]:
        """Closed jobs that keep checkpoints and have a sum in the database."""
        question = replace(question, limit=0)

        def read(connection: Connection, only: Only) -> JobSet:
            query = select(ledger_shares.c.job_id).distinct()
            query = query.join(ledgers, ledgers.c.job_id == ledger_shares.c.job_id)
            query = query.where(ledgers.c.kept_bytes > 0, *_conditions(question, only))
            if question.by is GroupBy.ATTEMPT:
                query = query.where(ledger_shares.c.attempt == 0)
            return JobSet(frozenset(connection.execute(query).scalars()))

        key = "kept rows", question
        found: JobSet = self._ledgers.cache.get(key, read, lambda a, b: JobSet(a.ids | b.ids))
        return found.ids

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
        order = _sum_of(PAID).desc(), _sum_of(CHARGES).desc()
        query = query.order_by(*order, *by).limit(question.limit)
    rows = connection.execute(query).all()
    found = [_cost_total(row[1:4], row[4:]) for row in rows]
    return _EndedTotals(found, rows[0][0] - len(found) if rows else 0)


def _merge_ended(question: CostRequest, known: _EndedTotals, more: _EndedTotals) -> _EndedTotals:
    """Known sums, with those of jobs whose rows were added since."""
    if question.is_long:
        # Each job has its own sums.
        both = sorted(
            [*known.costs, *more.costs],
            key=lambda cost: (-cost.paid_micros, -cost.charged_micros, cost.key),
        )
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
    # A row without nodes changes no count of jobs.
    yield func.count(case((ledger_shares.c.has_nodes == 1, ledger_shares.c.job_id)).distinct())
    for name in (*AMOUNTS, *CHARGES):
        yield func.sum(ledger_shares.c[name])
    for name in FLAGS:
        yield func.max(ledger_shares.c[name])


def _sum_of(names: Iterable[str]) -> ColumnElement[Any]:
    return func.sum(functools.reduce(operator.add, (ledger_shares.c[name] for name in names)))


def _cost_total(names: Iterable[str | None], values: Iterable[Any]) -> CostTotal:
    """Build a sum from its key, label, part and the columns of `_sums`.

    Without rows the database returns NULL, which counts as 0.
    """
    key, label, part = (name or "" for name in names)
    count, *rest = (int(value or 0) for value in values)
    amounts = dict(zip(AMOUNTS, rest, strict=False))
    charges = dict(zip(CHARGES, rest[len(AMOUNTS) :], strict=False))
    flags = dict(zip(FLAGS, map(bool, rest[len(AMOUNTS) + len(CHARGES) :]), strict=True))
    return CostTotal(key, label, part, count, amounts, charges=charges, **flags)


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
    places = Counter(part.group_key for part in (*closed, *opened) if part.jobs)
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
            if (whole := parts.get((key, within))) is None:
                label = item.history.name if question.by is GroupBy.JOB else ""
                whole = parts[key, within] = CostTotal(key, label, within)
            _add_row(whole, share, row)
    return list(parts.values())


def _add_row(whole: CostTotal, share: CostAllocation, row: Mapping[str, Any]) -> None:
    if row["has_nodes"]:
        whole.jobs = 1
        amounts = whole.amounts
        for name in AMOUNTS:
            amounts[name] += row[name]
        whole.simulated |= share.simulated
        whole.is_price_estimate |= share.is_price_estimate
    else:
        for name in CHARGES:
            whole.charges[name] += row[name]
        whole.has_unpriced |= bool(row["has_unpriced"])


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
