"""Totals over many jobs: rows derived from the log alone, which add up to the bills."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields, replace
from datetime import date, timedelta
from typing import Any

import pytest
from holdfast.domain.billing.allocation import CostAllocation
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.charges.charge_shares import KeptStorage
from holdfast.domain.events import CancelRequested, Event, Outcome, PriceChanged
from holdfast.domain.preemptions.placements import PlacementRecord
from holdfast.store.billing.bills import (
    ROLLUP_VERSION,
    BillRollups,
    JobHistory,
    hour_rows,
    placement_row,
)
from holdfast.store.billing.charge_rows import ledger_rows
from holdfast.store.billing.cost_request import CostRequest, GroupBy
from holdfast.store.billing.costs import AMOUNTS, CostQueries
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from holdfast.store.tables.billing import (
    ledger_hours,
    ledger_placements,
    ledger_shares,
    ledger_tags,
    ledgers,
)
from holdfast_worker.protocol.reports import Report, ReportKind
from sqlalchemy import Engine, event, select
from support.events import (
    DAWN,
    at,
    finished,
    launched,
    lost,
    node_lost,
    node_replaced,
    ready,
    saved,
    submitted,
    training,
)
from support.fakes import FixedClock

HOUR_S = 3600
NOW = at(60 * HOUR_S)


def job_events(draw: random.Random) -> list[Event]:
    """A job of some placements, possibly over midnight, ended or not."""
    events: list[Event] = [launched(1)]
    seconds = draw.randrange(20 * HOUR_S)
    for attempt in range(1, draw.randint(1, 4) + 1):
        seconds += draw.randrange(HOUR_S)
        micros = draw.choice([1, 7_777_777, 33_333_333])
        events.append(ready(seconds, attempt=attempt, zone=draw.choice("abc"), micros=micros))
        events.append(training(seconds + 60, attempt=attempt, step=0))
        events.append(saved(seconds + 600, attempt=attempt, step=10, stall_ms=100))
        if attempt != 2:
            events.append(node_lost(seconds + 620, attempt=attempt))
            events.append(node_replaced(seconds + 650, attempt=attempt))
        seconds += draw.randint(700, 9 * HOUR_S)
        events.append(lost(seconds, attempt=attempt))
    if draw.random() < 0.2:
        return events[:-1]
    return (
        [*events[:-1], finished(seconds)] if draw.random() < 0.5 else [*events, finished(seconds)]
    )


@pytest.fixture
def costs(engine: Engine, clock: FixedClock, journal: Journal) -> CostQueries:
    """Thirty jobs of three users in two projects; some have a tag."""
    draw = random.Random(7)
    for number in range(30):
        tags = {"team": draw.choice(["nlp", "vision"])} if number % 3 else {}
        submission = submitted(name=f"run-{number}", tags=tags)
        submission = replace(submission, by=f"user-{number % 3}", project=f"p{number % 2}")
        job = journal.submit(f"job-{number:02}", submission)
        journal.append(job, job_events(draw))
    clock.advance((NOW - clock.now()).total_seconds())
    return CostQueries(engine, BillRollups(engine))


def bills(engine: Engine) -> dict[str, list[Event]]:
    found = Queries(engine).events([f"job-{number:02}" for number in range(30)])
    return {job_id: [item.event for item in items] for job_id, items in found.items()}


@pytest.mark.parametrize("by", [*GroupBy])
def test_every_grouping_adds_up_to_all_bills(
    engine: Engine, costs: CostQueries, by: GroupBy
) -> None:
    accounts = [compute_bill(events, {}, NOW) for events in bills(engine).values()]

    result = costs.totals(CostRequest(by=by, tag="team" if by is GroupBy.TAG else ""), NOW)

    assert result.pending == 0
    for sums in (result.totals, [result.total]):
        assert sum(cost.paid_micros for cost in sums) == sum(a.paid_micros for a in accounts)
        assert sum(cost.ms.total for cost in sums) == sum(a.ms.total for a in accounts)
        assert sum(cost.amounts["waiting_ms"] for cost in sums) == sum(
            a.waiting_ms for a in accounts
        )
        assert sum(cost.saved_micros for cost in sums) == sum(a.saved_micros for a in accounts)
        assert sum(cost.wasted_micros for cost in sums) == sum(a.wasted_micros for a in accounts)
    assert result.total.jobs == 30


def test_totals_by_job_are_the_bills_and_have_names(engine: Engine, costs: CostQueries) -> None:
    found = {cost.key: cost for cost in costs.totals(CostRequest(by=GroupBy.JOB), NOW).totals}

    for job_id, events in bills(engine).items():
        account = compute_bill(events, {}, NOW)
        assert found[job_id].paid_micros == account.paid_micros
        assert (found[job_id].ms, found[job_id].micros) == (account.ms, account.micros)
        assert (found[job_id].label, found[job_id].jobs) == (f"run-{int(job_id[-2:])}", 1)


def test_totals_group_by_user_project_and_tag(costs: CostQueries) -> None:
    def keys(by: GroupBy, tag: str = "", projects: frozenset[str] | None = None) -> Counter[str]:
        sums = costs.totals(CostRequest(by=by, tag=tag, projects=projects), NOW).totals
        return Counter({cost.key: cost.jobs for cost in sums})

    assert keys(GroupBy.USER) == {"user-0": 10, "user-1": 10, "user-2": 10}
    assert keys(GroupBy.PROJECT) == {"p0": 15, "p1": 15}
    assert keys(GroupBy.PROJECT, projects=frozenset({"p1"})) == {"p1": 15}
    tagged = keys(GroupBy.TAG, "team")
    assert (set(tagged), tagged[""], tagged.total()) == ({"", "nlp", "vision"}, 10, 30)
    assert keys(GroupBy.TAG, "nobody-has-it") == {"": 30}


def test_days_add_up_and_windows_have_whole_days(costs: CostQueries) -> None:
    days = costs.totals(CostRequest(by=GroupBy.DAY), NOW).totals
    second = DAWN.date() + timedelta(days=1)

    part = costs.totals(CostRequest(by=GroupBy.ZONE, since=second, until=second), NOW)

    assert [cost.key for cost in days] == sorted(cost.key for cost in days)
    assert len(days) >= 2
    [same] = [cost for cost in days if cost.key == second.isoformat()]
    assert part.total.amounts == same.amounts
    assert sum(cost.paid_micros for cost in part.totals) == same.paid_micros


def rows(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    tables = (ledgers, ledger_tags, ledger_shares, ledger_placements, ledger_hours)
    with engine.connect() as connection:
        return {t.name: sorted(map(tuple, connection.execute(select(t)))) for t in tables}


def test_rollup_rows_match_a_recomputation_from_the_log(engine: Engine, costs: CostQueries) -> None:
    costs.totals(CostRequest(by=GroupBy.JOB), NOW)

    kept = [item for job in bills(engine) if (item := BillRollups(engine).recompute_job(job))]
    ended = {row[0] for row in rows(engine)["ledgers"]}
    collected = {name: set(found) for name, found in rows(engine).items()}
    mine = [item for item in kept if item.history.job_id in ended]

    assert 10 < len(mine) < 30
    assert collected["ledger_shares"] == {
        _row(ledger_shares, row) for item in mine for row in ledger_rows(item.ended_rows)
    }
    assert collected["ledger_hours"] == {_row(ledger_hours, row) for i in mine for c in i.placements for row in hour_rows(i.history, c)}  # fmt: skip
    assert collected["ledger_placements"] == {_row(ledger_placements, placement_row(i.history, c)) for i in mine for c in i.placements}  # fmt: skip


def _row(table: object, values: dict[str, object]) -> tuple[object, ...]:
    return tuple(values[column.name] for column in table.columns)  # type: ignore[attr-defined]


def one(journal: Journal) -> None:
    events = [launched(1), ready(10), lost(20), finished(30)]
    journal.append(journal.submit("job-1", submitted()), events)


def test_price_change_after_the_end_updates_totals(engine: Engine, journal: Journal) -> None:
    one(journal)
    costs = CostQueries(engine, BillRollups(engine))
    before = costs.totals(CostRequest(by=GroupBy.JOB), NOW).total.paid_micros
    change = PriceChanged(
        at=at(15), attempt=1, micros_per_hour=7_200_000, on_demand_micros_per_hour=9_000_000
    )

    journal.append(journal.read("job-1"), [change])

    assert (before, costs.totals(CostRequest(by=GroupBy.JOB), NOW).total.paid_micros) == (
        10_000,
        15_000,
    )


def test_points_after_the_end_update_the_rollup(engine: Engine, journal: Journal) -> None:
    failed = finished(30, Outcome.FAILED)
    events = [launched(1), ready(10), training(11), saved(15, step=5), lost(20), failed]
    journal.append(journal.submit("job-1", submitted()), events)
    costs = BillRollups(engine)
    costs.roll_up(9)
    report = Report(1, 1, at(19).isoformat(), ReportKind.PROGRESS, {"step": 9, "values": {}})

    journal.ingest("job-1", 1, [report])

    assert costs.pending() == 1
    assert costs.roll_up(9) == 1
    with engine.connect() as connection:
        assert connection.execute(select(ledger_placements.c.lost_steps)).scalar_one() == 4


def test_point_arriving_during_a_rollup_is_included(engine: Engine, journal: Journal) -> None:
    """A point is no event, so the rollup gets no notification that its rows are outdated."""
    failed = finished(30, Outcome.FAILED)
    events = [launched(1), ready(10), training(11), saved(15, step=5), lost(20), failed]
    journal.append(journal.submit("job-1", submitted()), events)
    last_reports = [
        Report(1, 1, at(19).isoformat(), ReportKind.PROGRESS, {"step": 9, "values": {}})
    ]
    costs = BillRollups(engine)

    def add_late_point(*words: Any) -> None:
        if "FROM job_events" in words[2] and last_reports:
            journal.ingest("job-1", 1, [last_reports.pop()])

    event.listen(engine, "after_cursor_execute", add_late_point)
    costs.roll_up(9)

    assert not last_reports
    assert costs.pending() == 0
    with engine.connect() as connection:
        assert connection.execute(select(ledger_placements.c.lost_steps)).scalar_one() == 4


def test_rollup_rows_of_other_rules_are_recomputed(engine: Engine, journal: Journal) -> None:
    one(journal)
    with_rules, without = BillRollups(engine), BillRollups(engine, with_rules=False)

    assert [with_rules.roll_up(9), with_rules.roll_up(9), without.roll_up(9)] == [1, 0, 1]
    assert [with_rules.pending(), without.pending()] == [1, 0]


def test_live_job_is_billed_up_to_now(engine: Engine, journal: Journal) -> None:
    job = journal.append(journal.submit("job-1", submitted()), [launched(1), ready(10)])
    costs = CostQueries(engine, BillRollups(engine))

    early, later = (costs.totals(CostRequest(by=GroupBy.DAY), at(s)).total for s in (20, 30))
    journal.append(job, [CancelRequested(at=at(35)), finished(40)])
    over = costs.totals(CostRequest(by=GroupBy.DAY), at(99)).total

    assert [cost.paid_micros for cost in (early, later, over)] == [10_000, 20_000, 30_000]
    assert [cost.jobs for cost in (early, later, over)] == [1, 1, 1]


def test_very_long_tags_do_not_block_the_rollup(engine: Engine, journal: Journal) -> None:
    tags = {"\u00e9" * 5000: "\u00e9" * 5000, "team": "nlp"}
    job = journal.submit("job-1", submitted(tags=tags))
    journal.append(job, [launched(1), ready(10), finished(30)])

    result = CostQueries(engine, BillRollups(engine)).totals(
        CostRequest(by=GroupBy.TAG, tag="team"), NOW
    )

    assert [(cost.key, cost.paid_micros) for cost in result.totals] == [("nlp", 20_000)]
    assert result.pending == 0


def test_no_jobs_cost_nothing(engine: Engine) -> None:
    result = CostQueries(engine, BillRollups(engine)).totals(CostRequest(by=GroupBy.USER), NOW)

    assert (result.totals, result.total.paid_micros, result.total.jobs) == ([], 0, 0)
    assert set(result.total.amounts) == set(AMOUNTS)


def test_rollup_version_matches_the_stored_fields() -> None:
    """Change this list together with `ROLLUP_VERSION`. Otherwise rows of an older version are used."""
    assert len(fields(CostAllocation)) == 11
    assert len(fields(PlacementRecord)) == 26
    assert len(fields(JobHistory)) == 8
    assert len(fields(KeptStorage)) == 4
    assert ROLLUP_VERSION == 6
    assert date.fromisoformat("2026-03-01") == DAWN.date()
