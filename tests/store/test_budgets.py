"""Spending counted by budgets: running sums beside jobs equal the cost of all events."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from holdfast.domain.access.audit import Actor
from holdfast.domain.billing.running_cost import RETAINED_METERS
from holdfast.domain.budgets import Budget, BudgetScope, Month, paid_between
from holdfast.domain.events import Event, PriceChanged
from holdfast.errors import BudgetSpent
from holdfast.store.budgets import spent
from holdfast.store.database import reading
from holdfast.store.journal import Journal
from sqlalchemy import Engine, text
from support.events import (
    DAWN,
    finished,
    launched,
    lost,
    paused,
    pausing,
    ready,
    resumed,
    submitted,
)
from support.fakes import FixedClock
from support.sql_log import statements

APRIL = datetime(2026, 4, 1, tzinfo=UTC)
APRIL_S = (APRIL - DAWN).total_seconds()
"""Seconds from the start of the history to April."""
HISTORIES = 12
PRICES = ("micros_per_hour", "on_demand_micros_per_hour")
ADA = Actor(name="ada")


def _history(draw: random.Random) -> list[Event]:
    """The events of a job that runs over the end of a month.

    It has more placements than stored meters.
    """
    now_s = APRIL_S - draw.randrange(3000)
    log: list[Event] = [submitted(now_s), launched(now_s)]
    for attempt in range(1, draw.randint(2, 2 * RETAINED_METERS + 4)):
        now_s += draw.randrange(100)
        log.append(ready(now_s - draw.randrange(20), attempt=attempt, micros=draw.randrange(1, 10**10)))  # fmt: skip
        for _ in range(draw.randrange(3)):
            at = log[-1].at + timedelta(milliseconds=draw.randrange(400_000))
            price = {name: draw.randrange(1, 10**10) for name in PRICES}
            log.append(PriceChanged(at=at, attempt=attempt, **price))
        now_s += draw.randrange(400)
        log.append(lost(now_s, attempt=attempt))
    if draw.random() < 0.3:
        log.pop()
    return [*log, finished(now_s + 5)] if draw.random() < 0.5 else log


def _write(journal: Journal, job_id: str, log: Sequence[Event]) -> None:
    [first, *rest] = log
    journal.append(journal.submit(job_id, first), rest)


def _spent(engine: Engine, now: datetime) -> tuple[int, int]:
    with reading(engine) as connection:
        return spent(connection, BudgetScope.PROJECT, "default", Month.containing(now), now)


@pytest.mark.parametrize("is_new", [True, False], ids=["written", "of-another-version"])
def test_running_sums_equal_the_fold_of_all_facts(
    engine: Engine, journal: Journal, *, is_new: bool
) -> None:
    draw = random.Random(7)
    logs = [_history(draw) for _ in range(HISTORIES)]
    for number, log in enumerate(logs):
        _write(journal, f"job-{number}", log)
    if not is_new:
        with engine.begin() as connection:
            connection.execute(text("UPDATE jobs SET last_month = NULL, paid_seq = NULL"))

    now = APRIL + timedelta(days=9)
    expected = sum(paid_between(log, APRIL, now) for log in logs)

    assert _spent(engine, now)[0] == expected > 0
    assert _spent(engine, now + timedelta(days=30))[0] == sum(
        paid_between(log, datetime(2026, 5, 1, tzinfo=UTC), now + timedelta(days=30))
        for log in logs
    )


def test_month_excludes_costs_of_the_previous_month(engine: Engine, journal: Journal) -> None:
    begun = [submitted(APRIL_S - 100), launched(APRIL_S - 100), ready(APRIL_S - 100)]
    _write(journal, "job-1", begun)
    _write(journal, "job-2", [*begun, finished(APRIL_S + 20)])

    assert _spent(engine, APRIL + timedelta(seconds=50)) == (70_000, 3_600_000)
    assert _spent(engine, APRIL - timedelta(seconds=1))[0] >= 99_000


def test_counting_cost_is_independent_of_ended_jobs(engine: Engine, journal: Journal) -> None:
    log = [submitted(), launched(), ready(1), finished(50)]
    executed: list[list[str]] = []
    for number in range(2):
        _write(journal, f"job-{number}", log)
        with statements(engine) as result:
            paid, _ = _spent(engine, DAWN + timedelta(hours=1))
        executed.append([statement for statement in result if "SELECT" in statement])

    assert paid == 2 * 49_000
    assert executed[0] == executed[1]
    assert not any("job_events" in statement for statement in executed[1])


def test_live_jobs_are_counted_without_their_folds(engine: Engine, journal: Journal) -> None:
    for number, log in enumerate([[submitted()], [submitted(), launched(), ready(1)]]):
        _write(journal, f"job-{number}", log)

    with engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET fold = '{}'"))
        connection.execute(text("DELETE FROM job_events"))

    assert _spent(engine, DAWN + timedelta(seconds=51)) == (50_000, 3_600_000)


def test_rows_of_an_older_version_are_refolded(engine: Engine, journal: Journal) -> None:
    log = [submitted(), launched(), ready(1), finished(50)]
    _write(journal, "job-1", log)
    _write(journal, "job-2", log)
    with engine.begin() as connection:
        # An older version writes events, `seq` and the fold, and leaves the columns beside them
        # unchanged.
        connection.execute(text("UPDATE jobs SET paid_seq = seq - 1, last_month_micros = 7"))

    assert _spent(engine, DAWN + timedelta(hours=1)) == (2 * 49_000, 0)


@pytest.mark.parametrize("begins", ["submission", "resume", "launch"])
def test_no_job_is_launched_on_a_spent_budget(
    journal: Journal, clock: FixedClock, begins: str
) -> None:
    _write(journal, "job-0", [submitted(), launched(), ready(1), finished(5)])
    job = journal.submit("job-1", submitted())
    if begins == "resume":
        job = journal.append(job, [launched(1), ready(2), pausing(3), lost(4), paused(5)])
    nothing = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=1)
    journal.budgets.set_budget(nothing, ADA.audit_action("budget.set", "x"))
    clock.advance(10)

    def begin() -> None:
        if begins == "submission":
            journal.submit("job-2", submitted(10))
        else:
            journal.append(job, [resumed(10) if begins == "resume" else launched(10)])

    with pytest.raises(BudgetSpent, match="cannot start"):
        begin()
