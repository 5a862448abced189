"""Batches of many jobs in one transaction have the same result as each batch alone."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from holdfast.domain.jobs.job import State
from holdfast.errors import BadReport, Fenced, HoldfastError, NotFound, NotRegistered
from holdfast.store.database import writing
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from holdfast.store.report_ingest import Accepted, BatchResult, ReportBatch
from holdfast.store.tables.billing import ledgers
from holdfast.store.tables.jobs import job_events, jobs, metric_points, report_marks
from holdfast.store.tables.launches import musters
from holdfast_worker.protocol.reports import Json, Report, ReportKind
from sqlalchemy import Engine, insert, select
from support.events import DAWN, finished, launched, pausing, ready, submitted
from support.fakes import FixedClock
from support.sql_log import statements

MINUTE = timedelta(minutes=1)


def report(n: int, kind: ReportKind, attempt: int = 1, **body: Json) -> Report:
    return Report(attempt, n, (DAWN + timedelta(seconds=10 + n)).isoformat(), kind, body)


def point(n: int, attempt: int = 1) -> Report:
    return report(n, ReportKind.PROGRESS, attempt, step=n, values={"loss": 1 / n, "nan": None})


def batch(job_id: str, *reports: Report, attempt: int = 1, **more: Any) -> ReportBatch:
    return ReportBatch(job_id=job_id, attempt=attempt, reports=reports, **more)


def start_job(journal: Journal, job_id: str) -> None:
    journal.append(journal.submit(job_id, submitted()), [launched(1), ready(2)])


def enlist(engine: Engine, job_id: str, *incarnations: str) -> None:
    """Register these incarnations in this order, all for attempt 1."""
    rows = [
        {"job_id": job_id, "n": n, "incarnation": name, "asked_at": DAWN, "attempt": 1}
        for n, name in enumerate(incarnations, 1)
    ]
    with writing(engine) as connection:
        connection.execute(insert(musters), rows)


def mixed_jobs(journal: Journal, engine: Engine, mark: str) -> list[str]:
    """Jobs of all kinds, and one that does not exist."""
    names = [f"{mark}-{kind}" for kind in ("stands", "mustered", "stops", "ended", "unknown")]
    for name in names[:4]:
        start_job(journal, name)
    enlist(engine, names[1], "old", "new")
    journal.append(journal.read(names[2]), [pausing(5)])
    journal.append(journal.read(names[3]), [finished(5)])
    row = {"seq": 4, "version": 1, "name": "", "owner": "", "project": "", "number": 1}
    with writing(engine) as connection:
        connection.execute(insert(ledgers).values(job_id=names[3], **row))
    return names


def random_report(rng: random.Random, n: int, attempt: int) -> Report:
    match rng.randrange(12):
        case 0:
            return report(n, ReportKind.RESTORE_STARTED, attempt)
        case 1:
            return report(n, ReportKind.TRAINING_STARTED, attempt, step=n)
        case 2:
            return report(n, ReportKind.CHECKPOINT_FAILED, attempt, step=n, detail="full")
        case 3 if rng.random() < 0.3:
            return report(n, ReportKind.PROGRESS, attempt, step="far", values={})
        case 4 if rng.random() < 0.3:
            return point(n, attempt + 1)
        case _:
            return point(n, attempt)


def sent(rng: random.Random, count: int) -> list[tuple[int, dict[str, Any]]]:
    """Batches, each with the index of its job in the list of jobs."""
    found = []
    for _ in range(count):
        attempt, first = rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 2, 3, 4, 6])
        reports = [random_report(rng, first + i, attempt) for i in range(rng.randrange(5))]
        fields: dict[str, Any] = {"attempt": attempt, "reports": reports}
        fields["incarnation"] = rng.choice([None, None, "old", "new", "new", "stranger"])
        fields["grace"] = rng.choice([None, MINUTE, 10 * MINUTE])
        found.append((rng.randrange(5), fields))
    return found


def outcome(result: BatchResult, name: str) -> object:
    if isinstance(result, HoldfastError):
        return type(result), str(result).replace(name, "JOB")
    return result.next, result.job and (result.job.state, result.job.seq)


def stored(engine: Engine, name: str) -> list[list[tuple[Any, ...]]]:
    """All rows about a job, without its name and the global positions of its events."""
    tables = (job_events, metric_points, report_marks, ledgers, jobs)
    hidden = {"job_id", "id", "cursor"}
    with engine.connect() as connection:
        return [
            sorted(
                (
                    tuple(
                        str(row[c.name]).replace(name, "JOB")
                        for c in table.c
                        if c.name not in hidden
                    )
                    for row in connection.execute(
                        select(table).where(next(iter(table.primary_key)) == name)
                    ).mappings()
                ),
            )
            for table in tables
        ]


@pytest.mark.parametrize("seed", range(12))
def test_grouped_batches_equal_batches_one_by_one(
    engine: Engine, clock: FixedClock, seed: int
) -> None:
    journal, rng = Journal(engine, clock), random.Random(seed)
    together, apart = (mixed_jobs(journal, engine, mark) for mark in ("together", "apart"))
    clock.advance(5 * 60)
    batches = sent(rng, 30)

    group = journal.ingest_reports(
        [ReportBatch(job_id=together[who], **each) for who, each in batches]
    )
    alone = [
        journal.ingest_reports([ReportBatch(job_id=apart[who], **each)])[0] for who, each in batches
    ]

    assert [outcome(v, together[who]) for v, (who, _) in zip(group, batches, strict=True)] == [
        outcome(v, apart[who]) for v, (who, _) in zip(alone, batches, strict=True)
    ]
    assert [stored(engine, name) for name in together] == [stored(engine, name) for name in apart]
    assert not any(journal.is_inconsistent(name) for name in together[:4])


def test_each_batch_of_a_group_gets_its_own_response(journal: Journal, engine: Engine) -> None:
    start_job(journal, "job-1")
    start_job(journal, "job-2")
    enlist(engine, "job-2", "old", "new")

    results = journal.ingest_reports(
        [
            batch("job-1", point(1), point(2)),
            batch("job-9", point(1)),
            batch("job-1", report(3, ReportKind.PROGRESS, step="far")),
            batch("job-2", point(1), incarnation="old"),
            batch("job-2", point(1), incarnation="stranger"),
            batch("job-2", point(1), incarnation="new"),
            batch("job-1", point(2), point(3)),
        ]
    )

    kinds = [type(each) for each in results]
    assert kinds == [Accepted, NotFound, BadReport, Fenced, NotRegistered, Accepted, Accepted]
    assert journal.marks("job-1") == {1: 3}
    assert [p.n for p in Queries(engine).points("job-1", limit=9)] == [1, 2, 3]


def test_report_answer_holds_the_job_only_if_it_must_stop(
    journal: Journal,
) -> None:
    start_job(journal, "job-1")
    start_job(journal, "job-2")
    journal.append(journal.read("job-2"), [pausing(5)])

    running, stopping = journal.ingest_reports([batch("job-1", point(1)), batch("job-2", point(1))])

    assert isinstance(running, Accepted)
    assert running.job is None
    assert isinstance(stopping, Accepted)
    assert stopping.job
    assert stopping.job.state is State.PAUSING


def test_a_point_keeps_its_time_its_step_and_every_digit(journal: Journal, engine: Engine) -> None:
    start_job(journal, "job-1")
    values = {
        "loss": 0.1 + 0.2,
        'odd "name" \u0000 \U0001f680': 1e300,
        "half \ud83d": -0.5,
        "none": None,
    }
    reported = Report(
        1,
        1,
        "0099-03-01T12:00:00.000001+02:00",
        ReportKind.PROGRESS,
        {"step": 2**53 + 1, "values": values},
    )

    journal.ingest_reports([batch("job-1", reported)])

    [found] = Queries(engine).points("job-1", limit=1)
    # Characters that some database cannot store are replaced in names; all others stay.
    kept = {"loss": 0.1 + 0.2, 'odd "name" ? \U0001f680': 1e300, "half ?": -0.5, "none": None}
    assert found.values == kept
    assert found.step == 2**53 + 1
    assert found.at.isoformat() == "0099-03-01T10:00:00.000001+00:00"


def test_reports_long_after_the_end_are_fenced(journal: Journal, clock: FixedClock) -> None:
    start_job(journal, "job-1")
    journal.append(journal.read("job-1"), [finished(5)])
    clock.advance(2 * 60)

    late, soon, ever = journal.ingest_reports(
        [
            batch("job-1", point(1), grace=MINUTE),
            batch("job-1", point(1), grace=3 * MINUTE),
            batch("job-1", point(2)),
        ]
    )

    assert isinstance(late, Fenced)
    assert isinstance(soon, Accepted)
    assert isinstance(ever, Accepted)
    assert (soon.next, ever.next) == (2, 3)


def test_late_report_period_uses_the_service_clock(journal: Journal, clock: FixedClock) -> None:
    start_job(journal, "job-1")
    clock.advance(2 * 60)
    journal.append(journal.read("job-1"), [finished(5)])  # Its launcher's clock is behind.
    clock.advance(30)

    [soon] = journal.ingest_reports([batch("job-1", point(1), grace=MINUTE)])

    assert isinstance(soon, Accepted)


def test_database_statements_are_independent_of_batches(journal: Journal, engine: Engine) -> None:
    """A thousand workers are ingested in one transaction.

    One query per worker takes a second in total.
    """
    for i in range(20):
        start_job(journal, f"job-{i}")
    counts = []

    for size in (1, 20):
        with statements(engine) as asked:
            journal.ingest_reports([batch(f"job-{i}", point(len(counts) + 1)) for i in range(size)])
        counts.append(len(asked))

    assert counts[0] == counts[1]
