"""The billing rollup: sums of closed jobs are computed without a request for them."""

from __future__ import annotations

import asyncio

import pytest
from holdfast.background.billing_rollup import run_rollups, warm_rollups
from holdfast.store.billing.bills import BATCH, BillRollups
from holdfast.store.billing.cost_request import CostRequest, GroupBy
from holdfast.store.billing.costs import CostQueries
from holdfast.store.journal import Journal
from sqlalchemy import Engine, create_engine
from support.events import at, finished, launched, lost, ready, submitted
from support.fakes import FixedClock
from support.sql_log import statements


def test_ended_jobs_are_rolled_up(engine: Engine, journal: Journal) -> None:
    count = BATCH + 3
    for number in range(count):
        job = journal.submit(f"job-{number:02}", submitted())
        journal.append(job, [launched(1), ready(10), lost(20), finished(30)])
    ledgers = BillRollups(engine)

    async def keep() -> None:
        task = asyncio.create_task(run_rollups(ledgers))
        async with asyncio.timeout(60):
            while ledgers.pending():  # noqa: ASYNC110 - no event signals its end
                await asyncio.sleep(0)
        task.cancel()

    asyncio.run(keep())

    assert ledgers.roll_up(99) == 0
    result = CostQueries(engine, ledgers).totals(CostRequest(by=GroupBy.JOB, limit=5), at(99))
    assert (len(result.totals), result.left_out, result.total.jobs) == (5, count - 5, count)
    assert result.total.paid_micros == 10_000 * count


def test_warm_up_computes_live_bills_before_first_query(engine: Engine, journal: Journal) -> None:
    for number in range(3):
        job = journal.submit(f"job-{number:02}", submitted())
        journal.append(job, [launched(1), ready(10)])
    ledgers = BillRollups(engine)

    with statements(engine) as at_start:
        asyncio.run(warm_rollups(ledgers, FixedClock(at(60))))
    with statements(engine) as executed:
        result = CostQueries(engine, ledgers).totals(CostRequest(by=GroupBy.JOB, limit=5), at(99))

    assert any("FROM job_events" in statement for statement in at_start)
    assert not any("FROM job_events" in statement for statement in executed)
    assert [cost.jobs for cost in result.totals] == [1, 1, 1]


def test_start_without_a_database_continues(caplog: pytest.LogCaptureFixture) -> None:
    ledgers = BillRollups(create_engine("sqlite:////nowhere/at/all.db"))

    asyncio.run(warm_rollups(ledgers, FixedClock(at(0))))

    assert "bills of live jobs are not precomputed" in caplog.text
