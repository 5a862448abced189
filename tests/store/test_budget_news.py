"""Warnings of budgets are news: one warning is one message, to those whom it concerns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import launched, ready, submitted, tripped
from holdfast.domain.budgets import Budget, BudgetScope
from holdfast.domain.events import Guard
from holdfast.domain.notifications.events import NewsKind
from office import ADA, URL, WEBHOOK, Office, open_office
from sqlalchemy import Engine


@pytest.fixture
def office(engine: Engine) -> Office:
    return open_office(engine)


def test_each_warning_of_a_budget_is_one_message(office: Office) -> None:
    """At 50, 80 and 95 %; a place that two jobs name hears of each once, too."""
    office.channel(kinds=frozenset({NewsKind.BUDGET}))
    dollars_10 = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=10_000_000)
    office.journal.budgets.put(dollars_10, ADA.did("budget.set", "x"))
    for job_id in ("job-1", "job-2"):
        rows = office.channels.of_job(job_id, "default", "ada", [(f"{URL}/own", WEBHOOK)])
        job = office.journal.submit(job_id, submitted(), channels=rows)
        office.journal.append(job, [launched(0), ready(0)])

    for _ in range(100):
        office.clock.advance(49)
        [purse] = office.journal.budgets.purses(office.clock.now())
        office.journal.budgets.warn(purse, office.clock.now())
        office.journal.budgets.warn(purse, office.clock.now())
        office.notifier().look_and_wait()

    for url in (URL, f"{URL}/own"):
        texts = [letter.text for to, _, letter in office.desk.got if to == url]
        assert [text.split("Z ", 1)[1].partition(" %")[0] for text in texts] == ["50", "80", "95"]
        assert "at $7.20 an hour, its jobs are paused at 2026-03-01 13:21Z" in texts[0]


def test_that_a_budget_is_spent_is_told_once_however_many_jobs_are_paused(office: Office) -> None:
    office.channel(kinds=frozenset({NewsKind.BUDGET}))
    budget = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=1_000_000)
    office.journal.budgets.put(budget, ADA.did("budget.set", "x"))
    for job_id in ("job-1", "job-2"):
        office.job(job_id, launched(0), ready(0))
    office.clock.advance(500)

    for job_id in ("job-1", "job-2"):
        trip = tripped(500, Guard.BUDGET)
        office.journal.append(office.journal.read(job_id), [trip])
        office.notifier().look_and_wait()

    [(_, _, letter)] = office.desk.got
    assert "the budget of project default, $1.00 a month, is spent: $1.00 in 2026-03" in letter.text
    assert "nothing of it is begun before 2026-04-01 00:00Z" in letter.text


def test_two_shares_that_are_reached_at_once_are_one_warning(office: Office) -> None:
    office.channel(kinds=frozenset({NewsKind.BUDGET}))
    office.job("job-1", launched(0), ready(0))
    budget = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=1_000_000)
    office.journal.budgets.put(budget, ADA.did("budget.set", "x"))
    office.clock.advance(850)
    [purse] = office.journal.budgets.purses(office.clock.now())

    warned = office.journal.budgets.warn(purse, office.clock.now())
    office.notifier().look_and_wait()

    [(_, _, letter)] = office.desk.got
    assert warned == (50, 80)
    assert "80 % are spent" in letter.text


def test_a_budget_that_is_set_anew_warns_anew(office: Office) -> None:
    """Also before the first warning has gone out, as both wait in one line."""
    office.channel(kinds=frozenset({NewsKind.BUDGET}))
    office.job("job-1", launched(0), ready(0))
    office.clock.advance(600)
    for _ in range(2):
        budget = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=1_000_000)
        office.journal.budgets.put(budget, ADA.did("budget.set", "x"))
        [purse] = office.journal.budgets.purses(office.clock.now())
        office.journal.budgets.warn(purse, office.clock.now())

    for _ in range(2):
        office.notifier().look_and_wait()

    assert len({told for [told] in office.desk.told}) == 2


def test_the_warnings_of_a_budget_are_news_of_its_project(office: Office) -> None:
    office.channel(kinds=frozenset({NewsKind.BUDGET}))
    office.channel("theirs", "vision")
    budget = Budget(scope=BudgetScope.PROJECT, name="default", monthly_micros=100, warn_at=(50,))
    office.journal.budgets.put(budget, ADA.did("budget.set", "x"))
    job = office.journal.submit("job-1", replace(submitted(), spec={}))
    office.journal.append(job, [launched(1), ready(2)])
    office.clock.advance(10)
    [purse] = office.journal.budgets.purses(office.clock.now())

    warned = office.journal.budgets.warn(purse, office.clock.now())
    office.notifier().look_and_wait()
    office.journal.budgets.warn(purse, office.clock.now())

    assert warned == (50,)
    assert office.notifier().look_and_wait() == 0
    [(_, _, letter)] = office.desk.got
    assert "50 % are spent of the budget of project default" in letter.text


def test_the_warnings_of_a_users_budget_go_to_what_their_own_jobs_name(office: Office) -> None:
    """And to no project, whose people need not know what somebody spends elsewhere."""
    office.channel()
    budget = Budget(scope=BudgetScope.USER, name="ada", monthly_micros=100, warn_at=(50,))
    office.journal.budgets.put(budget, ADA.did("budget.set", "x"))
    rows = office.channels.of_job("job-1", "default", "ada", [(URL, WEBHOOK)])
    mine = replace(submitted(), by="ada")
    job = office.journal.submit("job-1", mine, channels=rows)
    office.journal.append(job, [launched(1), ready(2)])
    office.clock.advance(10)
    [purse] = office.journal.budgets.purses(office.clock.now())

    office.journal.budgets.warn(purse, office.clock.now())
    office.notifier().look_and_wait()

    [(_, secrets, letter)] = office.desk.got
    assert secrets == ()
    assert "50 % are spent of the budget of user ada" in letter.text
