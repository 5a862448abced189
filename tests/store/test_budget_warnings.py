"""Budget warnings as notifications: one message per warning, to the affected channels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.budgets import Budget, BudgetScope
from holdfast.domain.events import Guard
from holdfast.domain.notifications.events import NotificationKind
from sqlalchemy import Engine
from support.events import launched, ready, submitted, tripped
from support.notifications import ADA, URL, WEBHOOK, NotificationHarness, open_notifications


@pytest.fixture
def harness(engine: Engine) -> NotificationHarness:
    return open_notifications(engine)


def test_each_warning_of_a_budget_is_one_message(harness: NotificationHarness) -> None:
    """Warnings are sent at 50, 80 and 95 %. A target named by two jobs receives each one once."""
    harness.channel(kinds=frozenset({NotificationKind.BUDGET}))
    dollars_10 = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=10_000_000)
    harness.journal.budgets.set_budget(dollars_10, ADA.audit_action("budget.set", "x"))
    for job_id in ("job-1", "job-2"):
        rows = harness.channels.rows_for_job(job_id, "default", "ada", [(f"{URL}/own", WEBHOOK)])
        job = harness.journal.submit(job_id, submitted(), channels=rows)
        harness.journal.append(job, [launched(0), ready(0)])

    for _ in range(100):
        harness.clock.advance(49)
        [balance] = harness.journal.budgets.balances(harness.clock.now())
        harness.journal.budgets.record_warnings(balance, harness.clock.now())
        harness.journal.budgets.record_warnings(balance, harness.clock.now())
        harness.notifier().run_once_and_wait()

    for url in (URL, f"{URL}/own"):
        texts = [message.text for to, _, message in harness.desk.got if to == url]
        assert [text.split("Z ", 1)[1].partition(" %")[0] for text in texts] == ["50", "80", "95"]
        assert "at $7.20 an hour, its jobs will be paused at 2026-03-01 13:21Z" in texts[0]


def test_spent_budget_notifies_once_for_all_paused_jobs(
    harness: NotificationHarness,
) -> None:
    harness.channel(kinds=frozenset({NotificationKind.BUDGET}))
    budget = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=1_000_000)
    harness.journal.budgets.set_budget(budget, ADA.audit_action("budget.set", "x"))
    for job_id in ("job-1", "job-2"):
        harness.job(job_id, launched(0), ready(0))
    harness.clock.advance(500)

    for job_id in ("job-1", "job-2"):
        trip = tripped(500, Guard.BUDGET)
        harness.journal.append(harness.journal.read(job_id), [trip])
        harness.notifier().run_once_and_wait()

    [(_, _, message)] = harness.desk.got
    assert (
        "the budget of project default ($1.00 a month) is spent: $1.00 in 2026-03" in message.text
    )
    assert "its jobs are paused, and no job starts before 2026-04-01 00:00Z" in message.text


def test_two_thresholds_at_once_are_one_warning(harness: NotificationHarness) -> None:
    harness.channel(kinds=frozenset({NotificationKind.BUDGET}))
    harness.job("job-1", launched(0), ready(0))
    budget = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=1_000_000)
    harness.journal.budgets.set_budget(budget, ADA.audit_action("budget.set", "x"))
    harness.clock.advance(850)
    [balance] = harness.journal.budgets.balances(harness.clock.now())

    warned = harness.journal.budgets.record_warnings(balance, harness.clock.now())
    harness.notifier().run_once_and_wait()

    [(_, _, message)] = harness.desk.got
    assert warned == (50, 80)
    assert "80 % of the budget of project default ($" in message.text


def test_budget_set_again_warns_again(harness: NotificationHarness) -> None:
    """This also holds before the first warning was sent, while both wait in one queue."""
    harness.channel(kinds=frozenset({NotificationKind.BUDGET}))
    harness.job("job-1", launched(0), ready(0))
    harness.clock.advance(600)
    for _ in range(2):
        budget = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=1_000_000)
        harness.journal.budgets.set_budget(budget, ADA.audit_action("budget.set", "x"))
        [balance] = harness.journal.budgets.balances(harness.clock.now())
        harness.journal.budgets.record_warnings(balance, harness.clock.now())

    for _ in range(2):
        harness.notifier().run_once_and_wait()

    assert len({each for [each] in harness.desk.told}) == 2


def test_budget_warnings_are_notifications_of_its_project(harness: NotificationHarness) -> None:
    harness.channel(kinds=frozenset({NotificationKind.BUDGET}))
    harness.channel("theirs", "vision")
    budget = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=100, warn_at=(50,))
    harness.journal.budgets.set_budget(budget, ADA.audit_action("budget.set", "x"))
    job = harness.journal.submit("job-1", replace(submitted(), spec={}))
    harness.journal.append(job, [launched(1), ready(2)])
    harness.clock.advance(10)
    [balance] = harness.journal.budgets.balances(harness.clock.now())

    warned = harness.journal.budgets.record_warnings(balance, harness.clock.now())
    harness.notifier().run_once_and_wait()
    harness.journal.budgets.record_warnings(balance, harness.clock.now())

    assert warned == (50,)
    assert harness.notifier().run_once_and_wait() == 0
    [(_, _, message)] = harness.desk.got
    assert "50 % of the budget of project default" in message.text


def test_user_budget_warnings_go_to_channels_of_their_jobs(
    harness: NotificationHarness,
) -> None:
    """They are sent to no project, as its members need not know a user's spending elsewhere."""
    harness.channel()
    budget = Budget(scope=BudgetScope.USER, name="ada", monthly_micros=100, warn_at=(50,))
    harness.journal.budgets.set_budget(budget, ADA.audit_action("budget.set", "x"))
    rows = harness.channels.rows_for_job("job-1", "default", "ada", [(URL, WEBHOOK)])
    mine = replace(submitted(), by="ada")
    job = harness.journal.submit("job-1", mine, channels=rows)
    harness.journal.append(job, [launched(1), ready(2)])
    harness.clock.advance(10)
    [balance] = harness.journal.budgets.balances(harness.clock.now())

    harness.journal.budgets.record_warnings(balance, harness.clock.now())
    harness.notifier().run_once_and_wait()

    [(_, secrets, message)] = harness.desk.got
    assert secrets == ()
    assert "50 % of the budget of user ada" in message.text
