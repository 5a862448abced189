"""The service in figures, as a monitor asks for them now and then: sums over all jobs, and how their watching goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Engine, func, select

from holdfast.domain.job import State
from holdfast.store.costs import AMOUNTS
from holdfast.store.database import reading
from holdfast.store.ledgers import Kept, Ledgers
from holdfast.store.schema import jobs, ledger_placements, ledger_shares, watches


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Figures of one moment. What is told by whether it is simulated says nothing of what there is none of."""

    jobs: Mapping[str, int]
    """By state, or outcome once ended; those of which there are any."""
    losses: Mapping[str, int]
    """Placements that were lost, by cause."""
    amounts: Mapping[bool, Mapping[str, int]]
    """The sums of `store.costs`, by whether prices are simulated."""
    standing: Mapping[bool, int]
    """Micro-dollars an hour of all nodes that stand, by whether prices are simulated."""
    watched: Mapping[str, int]
    """Jobs that are looked at, by launcher."""
    unseen: Mapping[str, int]
    """Those of them of which the last look gave nothing, by launcher."""
    overdue_s: float
    """How long the look is overdue that is so for longest; 0 where none is."""
    pending: int
    """Jobs that have ended and are not in these sums as they are now."""


def tally(engine: Engine, ledgers: Ledgers, now: datetime) -> Tally:
    """The figures as of now.

    Raises:
        StoreUnavailable: the database cannot be reached.
    """
    live = ledgers.live(now)
    losses = Counter(
        item.cause.value for kept in live for item in kept.account.attempts if item.cause
    )
    return Tally(
        jobs=_by(engine, jobs.c.status),
        losses=losses + Counter(_by(engine, ledger_placements.c.cause)),
        amounts=_amounts(engine, live),
        standing=_standing(live),
        watched=_watched(engine),
        unseen=_watched(engine, watches.c.trouble.is_not(None)),
        overdue_s=_overdue_s(engine, now),
        pending=ledgers.pending(),
    )


def _by(engine: Engine, column: ColumnElement[str]) -> dict[str, int]:
    query = select(column, func.count()).where(column.is_not(None)).group_by(column)
    with reading(engine) as connection:
        return {word: count for word, count in connection.execute(query)}  # noqa: C416 - rows, not pairs


def _watched(engine: Engine, *where: ColumnElement[bool]) -> dict[str, int]:
    """Jobs that are looked at; nobody looks at one that is paused."""
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


def _amounts(engine: Engine, live: list[Kept]) -> dict[bool, dict[str, int]]:
    sums = (func.sum(ledger_shares.c[name]) for name in AMOUNTS)
    query = select(ledger_shares.c.simulated, *sums).group_by(ledger_shares.c.simulated)
    with reading(engine) as connection:
        rows = connection.execute(query).all()
    found = {bool(row[0]): dict(zip(AMOUNTS, map(int, row[1:]), strict=True)) for row in rows}
    for kept in live:
        for share, row in kept.rows:
            total = found.setdefault(share.simulated, dict.fromkeys(AMOUNTS, 0))
            for name in AMOUNTS:
                total[name] += row[name]
    return found


def _standing(live: list[Kept]) -> dict[bool, int]:
    rates: dict[bool, int] = {}
    for kept in live:
        for item in kept.account.attempts:
            if item.ended_at is None:
                rate = sum(group.tariff.newest_micros_per_hour for group in item.groups)
                rates[item.simulated] = rates.get(item.simulated, 0) + rate
    return rates
