"""Reports arrive late, twice, in parts and out of order; each is accepted once and in order."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from holdfast.domain.billing.bill import LatestPoint
from holdfast.domain.events import CheckpointCommitted
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.errors import BadReport, NotFound
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from holdfast_worker.protocol.reports import Json, Report, ReportKind
from sqlalchemy import Engine
from support.events import DAWN, at, launched, ready, submitted
from support.fakes import FixedClock


@pytest.fixture
def journal(engine: Engine, clock: FixedClock) -> Journal:
    """A journal with one job whose first attempt is running."""
    journal = Journal(engine, clock)
    journal.append(journal.submit("job-1", submitted()), [launched(1), ready(2)])
    return journal


def report(n: int, kind: ReportKind, *, attempt: int = 1, **body: Json) -> Report:
    return Report(attempt, n, (DAWN + timedelta(seconds=10 + n)).isoformat(), kind, body)


def progress(n: int, *, attempt: int = 1) -> Report:
    return report(n, ReportKind.PROGRESS, attempt=attempt, step=n, values={"loss": 1 / n})


def committed(n: int) -> Report:
    return report(
        n,
        ReportKind.CHECKPOINT_COMMITTED,
        step=n,
        checkpoint=f"step-{n}",
        size_bytes=1,
        stall_ms=0,
        upload_ms=0,
        snapshot_at=at(n).isoformat(),
        weights_sha256="00",
    )


def ten_reports(attempt: int = 1) -> list[Report]:
    """Ten reports of one attempt."""
    return [
        report(1, ReportKind.RESTORE_STARTED, attempt=attempt),
        report(2, ReportKind.TRAINING_STARTED, attempt=attempt, step=0),
        *(progress(n, attempt=attempt) for n in range(3, 11)),
    ]


def kinds(journal: Journal) -> list[str]:
    return [item.kind for item in journal.events("job-1")][3:]


def test_reports_become_events_and_points(journal: Journal, engine: Engine) -> None:
    wanted = journal.ingest("job-1", 1, ten_reports()).next

    assert wanted == 11
    assert kinds(journal) == ["RestoreStarted", "TrainingStarted"]
    assert journal.read("job-1").state is State.TRAINING
    assert [point.n for point in Queries(engine).points("job-1", limit=50)] == [*range(3, 11)]
    assert journal.marks("job-1") == {1: 10}


def test_repeated_batch_is_accepted_once(journal: Journal, engine: Engine) -> None:
    first = journal.ingest("job-1", 1, ten_reports()).next
    again = journal.ingest("job-1", 1, ten_reports()).next

    assert (first, again) == (11, 11)
    assert kinds(journal) == ["RestoreStarted", "TrainingStarted"]
    assert len(Queries(engine).points("job-1", limit=50)) == 8


def test_reports_after_a_gap_are_refused_with_the_next_number(
    journal: Journal,
) -> None:
    with_gap = [*ten_reports()[:3], *ten_reports()[5:]]

    assert journal.ingest("job-1", 1, with_gap).next == 4
    assert journal.ingest("job-1", 1, ten_reports()[6:]).next == 4
    assert journal.ingest("job-1", 1, ten_reports()[3:]).next == 11


def test_gap_before_the_oldest_report_is_accepted(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """The service was restored from a backup.

    The worker no longer has the reports that were acknowledged since.
    """
    journal.ingest("job-1", 1, ten_reports()[:2])

    wrong = journal.ingest("job-1", 1, ten_reports()[6:], oldest=6).next
    empty = journal.ingest("job-1", 1, [], oldest=7).next
    right = journal.ingest("job-1", 1, ten_reports()[6:], oldest=7).next
    again = journal.ingest("job-1", 1, ten_reports()[3:], oldest=4).next

    assert (wrong, empty, right, again) == (3, 3, 11, 11)
    assert [text for text in caplog.messages if "missing" in text] == [
        "job-1 attempt 1: reports 3 to 6 are missing; the worker has only reports from 7 on"
    ]


def test_events_after_a_gap_apply_without_the_start(journal: Journal) -> None:
    after = [committed(40), report(41, ReportKind.PREEMPTION_NOTICED, step=41, left_s=30)]

    wanted = journal.ingest("job-1", 1, after, oldest=40).next

    assert wanted == 42
    assert kinds(journal) == ["CheckpointCommitted", "PreemptionNoticed"]
    assert journal.read("job-1").state is not State.ENDED


def test_overlapping_reports_are_skipped(journal: Journal) -> None:
    journal.ingest("job-1", 1, ten_reports()[:6])

    assert journal.ingest("job-1", 1, ten_reports()[2:]).next == 11
    assert kinds(journal) == ["RestoreStarted", "TrainingStarted"]


def test_out_of_order_reports_are_accepted_only_in_sequence(journal: Journal) -> None:
    assert journal.ingest("job-1", 1, ten_reports()[::-1]).next == 2
    assert journal.ingest("job-1", 1, ten_reports()).next == 11


def test_empty_batch_returns_the_next_report_number(journal: Journal) -> None:
    assert journal.ingest("job-1", 1, []).next == 1
    journal.ingest("job-1", 1, ten_reports())
    assert journal.ingest("job-1", 1, []).next == 11


def test_reports_are_counted_per_attempt(journal: Journal) -> None:
    journal.ingest("job-1", 1, ten_reports(1))

    assert journal.ingest("job-1", 2, ten_reports(2)[:2]).next == 3
    assert journal.ingest("job-1", 1, ten_reports(1)).next == 11
    assert journal.marks("job-1") == {1: 10, 2: 2}


def test_report_of_another_attempt_is_refused(journal: Journal) -> None:
    with pytest.raises(BadReport, match="attempt"):
        journal.ingest("job-1", 1, ten_reports(2))

    assert journal.marks("job-1") == {}


def test_shuffled_batches_end_with_every_report_once(journal: Journal, engine: Engine) -> None:
    rng, sent = random.Random(7), [*ten_reports(), *map(committed, range(11, 31))]

    wanted = 1
    while wanted <= len(sent):
        piece = rng.sample(sent, rng.randrange(1, len(sent)))
        piece = sorted(piece, key=lambda item: item.n) if rng.random() < 0.8 else piece
        wanted = journal.ingest("job-1", 1, piece).next

    log = [item.event for item in journal.events("job-1")]
    steps = [event.step for event in log if isinstance(event, CheckpointCommitted)]
    assert steps == [*range(11, 31)]
    assert kinds(journal)[:2] == ["RestoreStarted", "TrainingStarted"]
    assert [p.n for p in Queries(engine).points("job-1", limit=99)] == [*range(3, 11)]
    assert journal.read("job-1") == fold("job-1", log)


@pytest.mark.parametrize("place", [1, 5, 10])
def test_one_invalid_report_rejects_its_batch(journal: Journal, engine: Engine, place: int) -> None:
    batch = ten_reports()
    batch[place - 1] = report(
        place, ReportKind.WORKER_LEFT, step=1, reason="failed", exit_code="none"
    )

    with pytest.raises(BadReport, match=f"report {place}"):
        journal.ingest("job-1", 1, batch)

    assert kinds(journal) == []
    assert journal.marks("job-1") == {}
    assert Queries(engine).points("job-1", limit=50) == []


@pytest.mark.parametrize("step", [2**63, -1, 2**200])
def test_out_of_range_number_is_an_invalid_report(journal: Journal, step: int) -> None:
    with pytest.raises(BadReport):
        journal.ingest("job-1", 1, [report(1, ReportKind.PROGRESS, step=step, values={})])


def test_nan_values_are_gaps_on_every_database(journal: Journal, engine: Engine) -> None:
    values: dict[str, Json] = {"loss": float("nan"), "grad": float("-inf"), "lr": 1e-3}

    journal.ingest("job-1", 1, [report(1, ReportKind.PROGRESS, step=1, values=values)])

    [point] = Queries(engine).points("job-1", limit=5)
    assert point.values == {"loss": None, "grad": None, "lr": 1e-3}


def test_reports_of_an_unknown_job_are_refused(journal: Journal) -> None:
    with pytest.raises(NotFound):
        journal.ingest("job-2", 1, ten_reports())


def test_latest_point_is_returned_for_each_attempt(journal: Journal, engine: Engine) -> None:
    journal.ingest("job-1", 1, ten_reports(1))
    journal.ingest("job-1", 2, ten_reports(2)[:4])

    assert Queries(engine).latest_points(["job-1", "job-2"]) == {
        "job-1": {1: LatestPoint(step=10, at=at(20)), 2: LatestPoint(step=4, at=at(14))}
    }
