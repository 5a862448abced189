"""Figures of the service for a monitoring system.

They are sums over all jobs, and the state of polling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, func, select

from holdfast.domain.jobs.job import State
from holdfast.store.billing.bills import BillRollups, LiveJob
from holdfast.store.billing.costs import AMOUNTS
from holdfast.store.billing.live_bills import AllocationRow
from holdfast.store.billing.rollup_cache import Only
from holdfast.store.database import reading
from holdfast.store.tables.billing import ledger_placements, ledger_shares
from holdfast.store.tables.jobs import jobs, watches


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceStatistics:
    """The figures of one moment.

    A mapping by whether prices are simulated omits what does not exist.
    """

    jobs: Mapping[str, int]
    """By state, or outcome once ended; without zeros."""
    losses: Mapping[str, int]
    """Lost placements and single nodes, by cause."""
    amounts: Mapping[bool, Mapping[str, int]]
    """The sums of `store.billing.costs`, by whether prices are simulated."""
    running_rates: Mapping[bool, int]
    """Micro-dollars an hour of all running nodes, by whether prices are simulated."""
    watched: Mapping[str, int]
    """Polled jobs, by launcher."""
    unobserved: Mapping[str, int]
    """Polled jobs whose last observation failed, by launcher."""
    overdue_s: float
    """Seconds by which the most overdue poll is late; 0 without one."""
    pending: int
    """Closed jobs that are not included with their current values."""


def collect_statistics(engine: Engine, ledgers: BillRollups, now: datetime) -> ServiceStatistics:
    """Collect the figures as of now.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    live = ledgers.live_jobs(now)
    money = ledgers.cache.get("tally", _read, CostSums.__add__)
    whole = money + CostSums({}, Counter())
    for kept in live:
        whole.add(kept.cached("tally", partial(_money, kept.closed_rows)))
        whole.add(_money(kept.open_node_rows))
        # Only events change them, unlike the rest of an open placement's record.
        whole.losses.update(kept.cached("losses", partial(_losses, kept)))
    with reading(engine) as connection:
        states = _by(connection, jobs.c.status)
    return ServiceStatistics(
        jobs=states,
        losses=whole.losses,
        amounts=whole.amounts,
        running_rates=_running_rates(live),
        watched=_watched(engine),
        unobserved=_watched(engine, watches.c.trouble.is_not(None)),
        overdue_s=_overdue_s(engine, now),
        pending=ledgers.pending(),
    )


@dataclass(frozen=True, slots=True)
class CostSums:
    """What some jobs cost and lost."""

    amounts: dict[bool, Counter[str]]
    losses: Counter[str]

    def add(self, other: CostSums) -> None:
        """Add other sums."""
        for simulated, amounts in other.amounts.items():
            self.amounts.setdefault(simulated, Counter()).update(amounts)
        self.losses.update(other.losses)

    def __add__(self, other: CostSums) -> CostSums:
        """The sum of both."""
        both = CostSums({}, Counter())
        both.add(self)
        both.add(other)
        return both


def _read(connection: Connection, only: Only) -> CostSums:
    """The sums of closed jobs."""
    sums = (func.sum(ledger_shares.c[name]) for name in AMOUNTS)
    query = select(ledger_shares.c.simulated, *sums).group_by(ledger_shares.c.simulated)
    cause = ledger_placements.c.cause
    shares, placements = [ledger_shares.c.has_nodes == 1], [cause.is_not(None)]
    if only is not None:
        shares.append(ledger_shares.c.job_id.in_(only))
        placements.append(ledger_placements.c.job_id.in_(only))
    rows = connection.execute(query.where(*shares)).all()
    amounts = {bool(row[0]): dict(zip(AMOUNTS, map(int, row[1:]), strict=True)) for row in rows}
    return CostSums(
        {simulated: Counter(of) for simulated, of in amounts.items()},
        Counter(_by(connection, cause, *placements)),
    )


def _money(rows: Iterable[AllocationRow]) -> CostSums:
    """The costs of a live job; its placements contain its losses."""
    money = CostSums({}, Counter())
    for share, row in rows:
        if not row["has_nodes"]:
            continue
        amounts = Counter({name: row[name] for name in AMOUNTS})
        money.add(CostSums({share.simulated: amounts}, Counter()))
    return money


def _losses(kept: LiveJob) -> Counter[str]:
    return Counter(item.listed_cause for item in kept.placements if item.listed_cause)


def _by(
    connection: Connection, column: ColumnElement[Any], *where: ColumnElement[bool]
) -> dict[str, int]:
    query = select(column, func.count()).where(*where).group_by(column)
    return {word: count for word, count in connection.execute(query)}  # noqa: C416 - rows, not pairs


def _watched(engine: Engine, *where: ColumnElement[bool]) -> dict[str, int]:
    """Number of polled jobs by launcher; paused jobs are not polled."""
    looked_at = watches.join(jobs, jobs.c.id == watches.c.job_id)
    query = (
        select(watches.c.engine, func.count())
        .select_from(looked_at)
        .where(jobs.c.status != State.PAUSED.value, *where)
        .group_by(watches.c.engine)
    )
    with reading(engine) as connection:
        return {word: count for word, count in connection.execute(query)}  # noqa: C416 - rows, not pairs


def _overdue_s(engine: Engine, now: datetime) -> float:
    with reading(engine) as connection:
        due: datetime | None = connection.execute(select(func.min(watches.c.due_at))).scalar()
    return max(0.0, (now - due).total_seconds()) if due else 0.0


def _running_rates(live: list[LiveJob]) -> dict[bool, int]:
    rates: dict[bool, int] = {}
    for kept in live:
        for item in kept.bill.attempts:
            if item.ended_at is None:
                rate = sum(group.rate.newest_micros_per_hour for group in item.groups)
                rates[item.simulated] = rates.get(item.simulated, 0) + rate
    return rates
