"""Monthly spending, the exhaustion of a budget, and its consequences."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from holdfast.domain.budgets import (
    Budget,
    BudgetBalance,
    BudgetScope,
    Month,
    OnReached,
    paid_between,
)
from holdfast.domain.events import Cause, Event, Guard, PriceChanged
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.guards import SAVE_GRACE_S, ms_until_trip, trip, trip_without_observation
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import fold
from hypothesis import given
from hypothesis import strategies as st
from support.events import at, finished, launched, lost, paused, pausing, ready, resumed, submitted

PER_HOUR = 3_600_000_000
"""One dollar per second."""
NLP = Budget(scope=BudgetScope.PROJECT, name="nlp", monthly_micros=1000_000_000)


def balance(spent_usd: float = 0, *, rate: int = 0, budget: Budget = NLP, seconds: float = 0) -> BudgetBalance:  # fmt: skip
    spent = round(spent_usd * 1_000_000)
    return BudgetBalance(budget=budget, at=at(seconds), spent_micros=spent, micros_per_hour=rate)


def job(*events: Event) -> Job:
    return fold("job-1", events)


RUNS = job(submitted(), launched(), ready(10, micros=PER_HOUR))


# Months


@pytest.mark.parametrize(
    ("now", "month", "end"),
    [
        ("2026-03-01T00:00:00+00:00", "2026-03", "2026-04-01"),
        ("2026-12-31T23:59:59+00:00", "2026-12", "2027-01-01"),
        ("2026-04-01T01:00:00+02:00", "2026-03", "2026-04-01"),
        ("2028-02-29T12:00:00+00:00", "2028-02", "2028-03-01"),
    ],
)
def test_a_month_is_one_of_the_calendar_in_utc(now: str, month: str, end: str) -> None:
    found = Month.containing(datetime.fromisoformat(now))

    assert str(found) == month
    assert found.end == datetime.fromisoformat(end).replace(tzinfo=UTC)


def test_new_month_starts_with_zero_spending_at_current_rate() -> None:
    april = datetime(2026, 4, 1, tzinfo=UTC)
    one = balance(990, rate=PER_HOUR)

    assert one.spent_by(april - timedelta(seconds=1)) > 990_000_000
    assert one.spent_by(april + timedelta(seconds=5)) == 5_000_000


# Monthly cost of a job


def test_job_across_month_end_is_charged_to_both_months() -> None:
    events = [submitted(0), launched(0), ready(100, micros=PER_HOUR), lost(200)]

    assert paid_between(events, at(0), at(150)) == 50_000_000
    assert paid_between(events, at(150), at(999)) == 50_000_000
    assert paid_between(events, at(300), at(999)) == 0
    assert paid_between([*events, ready(300, attempt=2, micros=PER_HOUR)], at(0), at(310)) == 110_000_000  # fmt: skip


@given(
    spans=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(0, PER_HOUR)), max_size=6),
    border=st.integers(0, 6000),
    is_running=st.booleans(),
)  # fmt: skip
def test_two_months_add_up_to_the_account_total(
    spans: list[tuple[int, int, int]], border: int, is_running: bool
) -> None:
    events: list[Event] = [submitted(), launched()]
    now = 0
    for attempt, (wait, up, rate) in enumerate(spans, 1):
        events += [ready(now + wait, attempt=attempt, micros=rate)]
        now += wait + up
        events += [lost(now, attempt=attempt)]
    if is_running:
        events.append(ready(now, attempt=len(spans) + 1, micros=PER_HOUR))

    first, second = (
        paid_between(events, at(0), at(border)),
        paid_between(events, at(border), at(9000)),
    )

    assert first + second == job(*events).account.paid_micros_by(at(9000))


def test_paused_time_costs_nothing() -> None:
    events = [submitted(), launched(), ready(0, micros=PER_HOUR), pausing(5), lost(10, cause=Cause.PAUSED)]  # fmt: skip
    events += [paused(10), resumed(500), launched(500, launch=2), ready(510, attempt=2, micros=PER_HOUR), finished(520)]  # fmt: skip

    assert paid_between(events, at(0), at(9999)) == 20_000_000


def test_price_change_counts_in_the_month_where_effective() -> None:
    dearer = PriceChanged(
        at=at(150),
        attempt=1,
        micros_per_hour=2 * PER_HOUR,
        on_demand_micros_per_hour=3 * PER_HOUR,
        price_source="market",
        price_as_of=at(150),
    )
    events = [submitted(0), launched(0), ready(100, micros=PER_HOUR), lost(200), dearer]

    assert paid_between(events, at(0), at(150)) == 50_000_000
    assert paid_between(events, at(150), at(999)) == 100_000_000


# Exhausted budgets


def test_budget_trips_with_enough_left_for_saving() -> None:
    left_s = 1000 - 500 - SAVE_GRACE_S
    one = balance(500, rate=PER_HOUR)

    assert one.ms_until_spent(at(0)) == left_s * 1000
    assert not one.blocks_jobs(at(left_s - 0.001))
    assert one.blocks_jobs(at(left_s))


def test_grace_of_running_and_new_nodes_adds_up() -> None:
    both_usd = 2 * SAVE_GRACE_S

    assert balance(1000 - both_usd, rate=PER_HOUR).is_spent(at(0), PER_HOUR)
    assert not balance(999 - both_usd, rate=PER_HOUR).is_spent(at(0), PER_HOUR)


def test_zero_rate_never_exhausts_a_budget() -> None:
    assert balance(999).ms_until_spent(at(0)) is None
    assert not balance(999.99).blocks_jobs(at(99999))
    assert balance(1000).blocks_jobs(at(0))


def test_warn_only_budget_blocks_no_jobs() -> None:
    warning_only = Budget(
        scope=BudgetScope.USER, name="ada", monthly_micros=1, on_reached=OnReached.WARN
    )
    one = balance(5, rate=PER_HOUR, budget=warning_only)

    assert one.is_spent(at(0))
    assert not one.blocks_jobs(at(0))
    assert one.ms_until_spent(at(0)) is None
    assert one.due_warnings(at(0)) == (50, 80, 95)


@pytest.mark.parametrize(
    ("spent", "due"), [(499.99, ()), (500, (50,)), (800, (50, 80)), (950, (50, 80, 95))]
)
def test_users_are_warned_at_fractions_of_a_budget(spent: float, due: tuple[int, ...]) -> None:
    assert balance(spent).due_warnings(at(0)) == due


def test_a_job_is_paused_once_the_budget_of_its_project_is_spent() -> None:
    full, empty = balance(100, rate=PER_HOUR), balance(990, rate=PER_HOUR)

    assert trip(RUNS, Limits(), at(20), [full]) is None
    for fact in (trip(RUNS, Limits(), at(20), [full, empty]), trip_without_observation(RUNS, Limits(), at(20), [empty])):  # fmt: skip
        assert fact is not None
        assert fact.guard is Guard.BUDGET
        assert fact.detail == (
            "the budget of project nlp ($1,000.00 a month) is spent: $1,010.00 in 2026-03 (the rest is reserved for the "
            "120 s to save); it resets at 2026-04-01 00:00Z; to raise it: holdfast budgets set project nlp"
        )


def test_job_without_nodes_is_blocked_by_rate_of_its_last_nodes() -> None:
    waits = job(submitted(), launched(), ready(10, micros=PER_HOUR), lost(20))

    assert trip(waits, Limits(), at(30), [balance(881)]) is not None
    assert trip(waits, Limits(), at(30), [balance(879)]) is None


@given(st.integers(1, 2 * PER_HOUR), st.integers(0, 900), st.integers(0, 1000))
def test_budget_trips_exactly_at_the_predicted_time(rate: int, spent: int, looked_s: int) -> None:
    one = balance(spent, rate=rate)

    within_ms = ms_until_trip(RUNS, Limits(), at(looked_s), [one])

    if within_ms is not None:
        moment = at(looked_s + within_ms / 1000)
        assert one.blocks_jobs(moment)
        assert within_ms <= 0 or not one.blocks_jobs(moment - timedelta(milliseconds=1))


@pytest.mark.parametrize(
    ("percent", "of", "message"),
    [
        (50, balance(500, rate=360_000_000), "50 % of the budget of project nlp ($1,000.00 a month) is spent: $500.00 in 2026-03; at $360.00 an hour, its jobs will be paused at 2026-03-01 13:21Z; raise it with"),
        (80, balance(800), "80 % of the budget of project nlp ($1,000.00 a month) is spent: $800.00 in 2026-03; raise it with"),
        (100, balance(999), "the budget of project nlp ($1,000.00 a month) is spent: $999.00 in 2026-03; its jobs are paused, and no job starts before 2026-04-01 00:00Z; raise it with"),
        (100, balance(1000, budget=replace(NLP, on_reached=OnReached.WARN)), "the budget of project nlp ($1,000.00 a month) is spent: $1,000.00 in 2026-03; raise it with"),
    ],
    ids=["predicted", "idle", "paused", "warned"],
)  # fmt: skip
def test_budget_warning_states_the_consequence(
    percent: int, of: BudgetBalance, message: str
) -> None:
    assert of.warning(percent, at(0)) == f"{message} holdfast budgets set project nlp"


def test_budget_reached_last_month_blocks_no_job_in_the_new_one() -> None:
    reached = replace(balance(10), was_reached=True)
    month = Month.containing(at(0))

    assert reached.blocks_jobs(month.end - timedelta(milliseconds=1))
    assert not reached.blocks_jobs(month.end)
