"""What jobs cost, added up by job, attempt, user, project, tag, zone or day.

Jobs that have ended are added up by the database, from their rows; those that live, here. Nothing is folded for a sum.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Engine,
    FromClause,
    String,
    and_,
    cast,
    func,
    literal_column,
    select,
)

from holdfast.domain.phases import Phases
from holdfast.store.database import reading
from holdfast.store.ledgers import AT_ONCE, Kept, Ledgers
from holdfast.store.schema import ledger_shares, ledger_tags, ledgers

AMOUNTS: Final = (
    *("waiting_ms", "setup_ms", "restore_ms", "useful_ms", "stalled_ms", "lost_ms", "node_ms"),
    *("setup_micros", "restore_micros", "useful_micros", "stalled_micros", "lost_micros"),
    *("adjusted_micros", "on_demand_micros"),
)
MARKS: Final = ("simulated", "is_price_estimate")


class By(StrEnum):
    """What sums are made of."""

    JOB = "job"
    ATTEMPT = "attempt"
    USER = "user"
    PROJECT = "project"
    TAG = "tag"
    ZONE = "zone"
    DAY = "day"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is to be added up."""

    by: By
    tag: str = ""
    """The tag whose values are told apart; empty unless `by` is TAG."""
    since: date | None = None
    """First day, in UTC; None: from the beginning."""
    until: date | None = None
    """Last day, in UTC; None: until now."""
    projects: Collection[str] | None = None
    """Only of these projects; None: of all."""
    limit: int = 1000
    """At most so many sums."""

    @property
    def is_long(self) -> bool:
        """Whether there are as many sums as jobs, or more: then the database leaves out what is not shown."""
        return self.by in {By.JOB, By.ATTEMPT}


@dataclass(slots=True)
class Cost:
    """A sum. Of a whole job or attempt, or of what a zone or a day has of them."""

    key: str
    """Of attempts `<job>/<attempt>`; empty where there is none: no user, tag, or zone."""
    label: str = ""
    """Name of the job; empty for others."""
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
        """Their money, before the rules of providers."""
        return self._phases("micros")

    @property
    def paid_micros(self) -> int:
        """Money by the rules of providers."""
        return self.micros.total + self.amounts["adjusted_micros"]

    @property
    def wasted_micros(self) -> int:
        """The money of all phases but the useful."""
        return self.micros.total - self.micros.useful

    @property
    def saved_micros(self) -> int:
        """What was saved against on demand; negative when nothing was."""
        return self.amounts["on_demand_micros"] - self.paid_micros

    def _phases(self, unit: str) -> Phases:
        of = self.amounts
        return Phases(
            setup=of[f"setup_{unit}"],
            restore=of[f"restore_{unit}"],
            useful=of[f"useful_{unit}"],
            stalled=of[f"stalled_{unit}"],
            lost=of[f"lost_{unit}"],
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """An answer."""

    sums: list[Cost]
    """The dearest first; by day, the oldest first."""
    left_out: int
    """How many more there are."""
    total: Cost
    pending: int
    """Jobs that have ended and are not in it as they are now: ask again in a moment."""


class CostBook:
    """Sums over all jobs."""

    def __init__(self, engine: Engine, ledgers: Ledgers) -> None:
        self._engine = engine
        self._ledgers = ledgers

    def ask(self, question: Question, now: datetime) -> Costs:
        """The sums that were asked for, as of now."""
        self._ledgers.settle(AT_ONCE)
        ended, count = self._ended(question)
        sums = {cost.key: cost for cost in ended}
        total = self._total(question)
        for item in self._ledgers.live(now):
            _add_live(sums, total, item, question)
        oldest_first = question.by is By.DAY
        order = sorted(sums.values(), key=lambda c: (0 if oldest_first else -c.paid_micros, c.key))
        shown = order[: question.limit]
        return Costs(shown, count + len(sums) - len(shown), total, self._ledgers.pending())

    def _ended(self, question: Question) -> tuple[list[Cost], int]:
        """The sums over jobs that have ended, and how many more there are."""
        key = _key(question)
        name = func.max(ledgers.c.name) if question.by is By.JOB else literal_column("''")
        tables, within = _tables(question), list(_within(question))
        by = [ledger_shares.c.job_id] if question.is_long else [key]
        by += [ledger_shares.c.attempt] if question.by is By.ATTEMPT else []
        query = select(key, name, *_sums()).select_from(tables).where(*within).group_by(*by)
        groups = select(*by).select_from(tables).where(*within).distinct().subquery()
        with reading(self._engine) as connection:
            if question.is_long:
                query = query.order_by(_paid().desc(), *by).limit(question.limit)
            found = [_cost(row[0] or "", row[1], row[2:]) for row in connection.execute(query)]
            if not question.is_long or len(found) < question.limit:
                return found, 0
            whole: int = connection.execute(select(func.count()).select_from(groups)).scalar_one()
            return found, whole - len(found)

    def _total(self, question: Question) -> Cost:
        query = select(*_sums()).select_from(_tables(question)).where(*_within(question))
        with reading(self._engine) as connection:
            return _cost("", "", connection.execute(query).one())


def _key(question: Question) -> ColumnElement[Any]:
    shares = ledger_shares.c
    keys: dict[By, ColumnElement[Any]] = {
        By.JOB: shares.job_id,
        By.ATTEMPT: func.max(shares.job_id + "/" + cast(shares.attempt, String)),
        By.USER: ledgers.c.owner,
        By.PROJECT: ledgers.c.project,
        By.TAG: func.coalesce(ledger_tags.c.value, ""),
        By.ZONE: shares.zone,
        By.DAY: shares.day,
    }
    return keys[question.by]


def _tables(question: Question) -> FromClause:
    """Shares alone where they say all that is asked: the others cost time."""
    tables: FromClause = ledger_shares
    if question.projects is not None or question.by in {By.JOB, By.USER, By.PROJECT}:
        tables = tables.join(ledgers, ledgers.c.job_id == ledger_shares.c.job_id)
    if question.by is By.TAG:
        mine = and_(
            ledger_tags.c.job_id == ledger_shares.c.job_id, ledger_tags.c.name == question.tag
        )
        tables = tables.outerjoin(ledger_tags, mine)
    return tables


def _within(question: Question) -> Iterator[ColumnElement[bool]]:
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
    for name in MARKS:
        yield func.max(ledger_shares.c[name])


def _paid() -> ColumnElement[Any]:
    paid = (name for name in AMOUNTS if name.endswith("_micros") and name != "on_demand_micros")
    return func.sum(functools.reduce(operator.add, (ledger_shares.c[name] for name in paid)))


def _cost(key: str, label: str, told: Iterable[Any]) -> Cost:
    """A sum from the columns of `_sums`. Of no rows the database says nothing, which is 0."""
    count, *rest = (int(value or 0) for value in told)
    amounts = dict(zip(AMOUNTS, rest, strict=False))
    simulated, estimate = rest[len(AMOUNTS) :]
    return Cost(key, label, count, amounts, bool(simulated), bool(estimate))


def _add_live(sums: dict[str, Cost], total: Cost, item: Kept, question: Question) -> None:
    if question.projects is not None and item.project not in question.projects:
        return
    seen: set[str] = set()
    for share, row in item.rows:
        day = share.day
        if (question.since and day < question.since) or (question.until and day > question.until):
            continue
        key = _live_key(item, row, question)
        label = item.name if question.by is By.JOB else ""
        cost = sums.setdefault(key, Cost(key, label))
        for each in (cost, total):
            for name in AMOUNTS:
                each.amounts[name] += row[name]
            each.simulated |= share.simulated
            each.is_price_estimate |= share.is_price_estimate
        cost.jobs += key not in seen
        total.jobs += not seen
        seen.add(key)


def _live_key(item: Kept, row: Mapping[str, Any], question: Question) -> str:
    keys: dict[By, str] = {
        By.JOB: item.job_id,
        By.ATTEMPT: f"{item.job_id}/{row['attempt']}",
        By.USER: item.owner,
        By.PROJECT: item.project,
        By.TAG: item.tags.get(question.tag, ""),
        By.ZONE: row["zone"],
        By.DAY: row["day"],
    }
    return keys[question.by]
