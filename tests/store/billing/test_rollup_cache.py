"""Cached totals equal recomputed ones, after any changes in between."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from holdfast.domain.events import CapacityLost, Event, PriceChanged
from holdfast.domain.jobs.job import State
from holdfast.store.billing.bills import BillRollups
from holdfast.store.billing.cost_request import CostRequest, GroupBy
from holdfast.store.billing.costs import CostQueries
from holdfast.store.billing.preemption_costs import PreemptionCostQueries
from holdfast.store.billing.preemptions import LossBy, LossRequest, PreemptionQueries
from holdfast.store.billing.rollup_cache import MAX_ANSWER_LENGTH
from holdfast.store.billing.statistics import collect_statistics
from holdfast.store.journal import Journal
from holdfast_worker.protocol.reports import Report, ReportKind
from sqlalchemy import Engine
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
from support.repetitions import repeat_count
from support.sql_log import statements

HOUR_S = 3600
NOW = at(90 * HOUR_S)
SECOND = DAWN.date() + timedelta(days=1)
COSTS = (
    *(CostRequest(by=by, tag="team" if by is GroupBy.TAG else "") for by in GroupBy),
    *(CostRequest(by=GroupBy.ATTEMPT, limit=3), CostRequest(by=GroupBy.JOB, limit=2)),
    *(
        CostRequest(by=GroupBy.ZONE, since=SECOND),
        CostRequest(by=GroupBy.DAY, projects=frozenset({"p1"})),
    ),
)
LOSSES = (
    *(LossRequest(by=by) for by in LossBy),
    LossRequest(by=LossBy.TYPE, since=SECOND, projects=frozenset({"p0"})),
    LossRequest(by=LossBy.HOUR, until=SECOND, zone="a", hours=6),
)


def begin(journal: Journal, draw: random.Random, number: int) -> None:
    """Create a job with some placements."""
    tags = {"team": draw.choice(["nlp", "vision"])} if number % 3 else {}
    executed = replace(
        submitted(name=f"run-{number}", tags=tags),
        by=draw.choice(["ada", "bob"]),
        project=draw.choice(["p0", "p1"]),
    )
    log: list[Event] = [launched(1)]
    seconds = float(draw.randrange(30 * HOUR_S))
    for attempt in range(1, draw.randint(2, 4)):
        micros = draw.choice([1, 7_777_777, 33_333_333])
        log.append(ready(seconds, attempt=attempt, zone=draw.choice("abc"), micros=micros))
        log.append(training(seconds + 60, attempt=attempt, step=0))
        log.append(saved(seconds + 600, attempt=attempt, step=10, stall_ms=100))
        if attempt != 2:
            log.append(node_lost(seconds + 620, attempt=attempt))
            log.append(node_replaced(seconds + 650, attempt=attempt))
        seconds += draw.randint(700, 9 * HOUR_S)
        log.append(lost(seconds, attempt=attempt))
    journal.append(journal.submit(f"job-{number:02}", executed), log[: draw.choice([-1, None])])


def end_or_extend(journal: Journal, draw: random.Random, number: int) -> None:
    """End a job, or add events to one that has ended."""
    job = journal.read(f"job-{number:02}")
    if job.state is State.ENDED and job.attempt and draw.random() < 0.5:
        n = journal.marks(job.id).get(job.attempt, 0) + 1
        step = {"step": 10 + n, "values": {}}
        journal.ingest(
            job.id,
            job.attempt,
            [Report(job.attempt, n, at(79 * HOUR_S), ReportKind.PROGRESS, step)],
        )
        return
    if job.state is State.ENDED:
        change = PriceChanged(
            at=at(30 * HOUR_S),
            attempt=1,
            micros_per_hour=draw.randrange(1, 9_000_000),
            on_demand_micros_per_hour=9_000_000,
        )
        journal.append(job, [change])
        return
    is_running = not isinstance(journal.events(job.id)[-1].event, CapacityLost)
    log: list[Event] = [lost(80 * HOUR_S, attempt=job.attempt)] if is_running else []
    journal.append(job, [*log, finished(80 * HOUR_S)])


def all_answers(engine: Engine, ledgers: BillRollups) -> list[Any]:
    """All responses. Of equal sums, any may be listed first."""
    costs, losses, job_costs = (
        CostQueries(engine, ledgers),
        PreemptionQueries(ledgers),
        PreemptionCostQueries(ledgers),
    )
    return [
        *(costs.totals(question, NOW) for question in COSTS),
        *(losses.report(question, NOW) for question in LOSSES),
        *(job_costs.notices(question, NOW) for question in LOSSES),
        *(job_costs.most_expensive(question, NOW, 3) for question in LOSSES),
        *(job_costs.history(question, NOW, 3) for question in LOSSES),
        collect_statistics(engine, ledgers, NOW),
    ]


@pytest.mark.parametrize("seed", range(repeat_count(1, 4)))
def test_cached_rollups_match_a_recomputation(
    engine: Engine, clock: FixedClock, journal: Journal, seed: int
) -> None:
    draw = random.Random(seed)
    clock.advance((NOW - clock.now()).total_seconds())
    ledgers, count = BillRollups(engine), 0

    for _ in range(8):
        for _ in range(draw.randrange(3)):
            if count and draw.random() < 0.6:
                end_or_extend(journal, draw, draw.randrange(count))
            else:
                begin(journal, draw, count)
                count += 1

        assert all_answers(engine, ledgers) == all_answers(engine, BillRollups(engine))


def test_only_rows_of_new_jobs_are_read(
    engine: Engine, clock: FixedClock, journal: Journal
) -> None:
    clock.advance((NOW - clock.now()).total_seconds())
    ledgers = BillRollups(engine)
    queries = CostQueries(engine, ledgers)

    def sums() -> list[str]:
        with statements(engine) as executed:
            queries.totals(CostRequest(by=GroupBy.PROJECT), NOW)
        return [query for query in executed if "ledger_shares" in query and "SELECT" in query[:6]]

    first, again = sums(), sums()
    job = journal.submit("job-1", submitted())
    journal.append(job, [launched(1), ready(10), finished(30)])
    more = sums()

    assert (len(first), again, len(more)) == (2, [], 2)
    assert all("ledgers.number >" in query for query in more)


def test_late_last_reports_are_counted_once(
    engine: Engine, clock: FixedClock, journal: Journal
) -> None:
    """Rows that were deleted for a recomputation were mistaken for rows of another job."""
    clock.advance((NOW - clock.now()).total_seconds())
    ledgers = BillRollups(engine)
    for number in range(3):
        job = journal.submit(f"job-{number:02}", submitted())
        stood = [launched(1), ready(10), training(60, step=0), lost(3600), finished(3700)]
        journal.append(job, stood)
        all_answers(engine, ledgers)

    last_report = Report(1, 1, at(1800), ReportKind.PROGRESS, {"step": 9, "values": {}})
    journal.ingest("job-02", 1, [last_report])
    collect_statistics(engine, ledgers, NOW)
    job = journal.submit("job-03", submitted())
    journal.append(job, [launched(1), ready(10), finished(3700)])

    assert all_answers(engine, ledgers) == all_answers(engine, BillRollups(engine))
    assert ledgers.pending() == 0


def test_very_large_response_is_not_cached(engine: Engine) -> None:
    sums, reads = BillRollups(engine).cache, list[int]()

    def read(size: int) -> list[int]:
        reads.append(size)
        return [0] * size

    for size in (
        MAX_ANSWER_LENGTH,
        MAX_ANSWER_LENGTH,
        MAX_ANSWER_LENGTH + 1,
        MAX_ANSWER_LENGTH + 1,
    ):
        sums.get(size, lambda *_: read(size), list.__add__)  # noqa: B023 - called at once

    assert reads == [MAX_ANSWER_LENGTH, MAX_ANSWER_LENGTH + 1, MAX_ANSWER_LENGTH + 1]
