"""Cached live bills equal those from the events, after any events and at any time."""

from __future__ import annotations

import random
from datetime import datetime

import pytest
from holdfast.domain.billing.bill import Bill, compute_bill
from holdfast.domain.events import Event
from holdfast.store.billing import job_summaries
from holdfast.store.billing.bills import BillRollups, LiveJob
from holdfast.store.billing.job_summaries import JobSummaries
from holdfast.store.billing.statistics import collect_statistics
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from holdfast_worker.protocol.reports import Json, Report, ReportKind
from sqlalchemy import Engine
from support.events import at, finished, launched, lost, ready, saved, submitted, training
from support.fakes import FixedClock

JOB = "job-1"


def shown_bill(kept: LiveJob) -> tuple[object, ...]:
    rows = sorted(tuple(row.items()) for _, row in kept.rows)
    return kept.bill, rows, list(kept.placements), kept.history.name, kept.history.tags


def ready_times(account: Bill) -> list[datetime]:
    return [attempt.ready_at for attempt in account.attempts]


def random_history(seed: int) -> list[Event | Report]:
    """Events in order of time, with points that arrive at once or late."""
    draw = random.Random(seed)
    now_s, step, ns = 10.0, 0, dict[int, int]()
    history: list[Event | Report] = [launched(1)]

    def point(attempt: int) -> Report:
        ns[attempt] = ns.get(attempt, 0) + 1
        body: dict[str, Json] = {"step": step + draw.randrange(9)}
        return Report(attempt, ns[attempt], at(now_s).isoformat(), ReportKind.PROGRESS, body)

    for attempt in range(1, draw.randint(2, 5)):
        now_s += draw.choice([5, 60_000])
        history.append(ready(now_s, attempt=attempt, zone=draw.choice("ab")))
        if draw.random() < 0.8:
            now_s += 3
            history.append(training(now_s, attempt=attempt, step=step))
            for _ in range(draw.randrange(4)):
                now_s, step = now_s + draw.choice([7, 4000]), step + 5
                # Worker clocks are sometimes ahead.
                ahead_s = draw.choice([0, 0, 0, 30])
                history.append(saved(now_s + ahead_s, attempt=attempt, step=step, stall_ms=400))
                history += [point(attempt) for _ in range(draw.randrange(3))]
        now_s += draw.choice([4, 90_000])
        history.append(lost(now_s, attempt=attempt))
        if ns.get(attempt) and draw.random() < 0.3:
            history.append(point(attempt))
    if draw.random() < 0.5:
        history.append(finished(now_s + 9))
    return history


@pytest.mark.parametrize("seed", range(6))
def test_cached_live_bills_match_a_recomputation(
    engine: Engine, journal: Journal, clock: FixedClock, seed: int
) -> None:
    journal.submit(JOB, submitted(tags={"team": "nlp"}))
    reading = Queries(engine)
    ledgers, digests = BillRollups(engine), JobSummaries(reading, with_rules=True)
    draw = random.Random(seed)

    for item in random_history(seed):
        if isinstance(item, Report):
            journal.ingest(JOB, item.attempt, [item])
        else:
            journal.append(journal.read(JOB), [item])
            clock.advance(max(0.0, (item.at - clock.now()).total_seconds() - 20))
        for _ in range(2):
            clock.advance(draw.choice([0, 0.001, 1, 40, 5000]))
            job, now = journal.read(JOB), clock.now()
            assert [shown_bill(kept) for kept in ledgers.live_jobs(now)] == [
                shown_bill(kept) for kept in BillRollups(engine).live_jobs(now)
            ]
            figures, new = collect_statistics(engine, ledgers, now), BillRollups(engine)
            assert figures == collect_statistics(engine, new, now)
            without = digests.without_bills([job], now)[JOB]
            digest, account = digests.get([job], now)[JOB]
            assert without == digest
            assert ready_times(without.live_bill.bill) == ready_times(account)
            facts = [fact.event for fact in journal.events(JOB)]
            assert account == compute_bill(facts, reading.latest_points([JOB]).get(JOB, {}), now)
            assert digest.seq == job.seq


def test_live_bill_cache_is_bounded(engine: Engine, journal: Journal) -> None:
    digests = JobSummaries(Queries(engine), with_rules=True, most=3)
    jobs = [journal.submit(f"job-{number}", submitted()) for number in range(5)]

    found = digests.get(jobs, at(9))

    assert list(found) == [job.id for job in jobs]
    assert len(digests._cache) == 3
    assert job_summaries.MAX_CACHED_SUMMARIES >= 200  # One page of a list.


def test_a_job_file_is_parsed_once(engine: Engine, journal: Journal) -> None:
    digests = JobSummaries(Queries(engine), with_rules=True)
    job = journal.append(journal.submit(JOB, submitted()), [launched(1), ready(2)])

    [first] = digests.get([job], at(9)).values()
    [second] = digests.get([job], at(99)).values()

    assert first[0] is second[0]
    assert second[1].paid_micros > first[1].paid_micros
