"""The report importer imports archives once and in order.

Unreadable archives stay and are logged.
"""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from holdfast.domain.jobs.job import State
from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable
from holdfast_worker.protocol.report_archive import MAX_ARCHIVE_BYTES, ArchiveKey, sender_of
from holdfast_worker.protocol.reports import Report, ReportKind
from sqlalchemy import Engine
from support.events import finished, launched, lost, ready, submitted
from support.fakes import FixedClock
from support.report_import import JOB, ReportImportHarness, leaving, report, words
from support.sql_log import statements


@pytest.fixture
def harness(engine: Engine, clock: FixedClock) -> ReportImportHarness:
    """A job whose first nodes are running."""
    harness = ReportImportHarness(engine, clock)
    harness.look(launched(0), ready(1))
    clock.advance(60)
    return harness


def test_posted_reports_are_imported_and_removed(harness: ReportImportHarness) -> None:
    harness.post(sender_of(1), *words(harness.clock, 1, 3))
    harness.post(sender_of(1), *words(harness.clock, 4, 2))

    imported = harness.visit()
    harness.post(sender_of(1), leaving(harness.clock, 6))
    again = harness.visit()

    assert (imported, again) == (2, 1)
    assert harness.kinds() == ["TrainingStarted", "WorkerLeft"]
    assert harness.steps() == [(1, 2), (1, 3), (1, 4), (1, 5)]
    assert harness.bucket_objects.keys() == []
    assert harness.journal.read(JOB).state is State.TRAINING
    assert harness.watches.next_due() == harness.clock.now(), "because its nodes can be released"


def test_reports_also_sent_over_http_are_imported_once(harness: ReportImportHarness) -> None:
    found = [*words(harness.clock, 1, 6)]
    harness.journal.ingest(JOB, 1, [Report(1, r.n, r.at, r.kind, r.body) for r in found[:4]])
    harness.post(sender_of(1), *found[:2])
    harness.post(sender_of(1), *found[2:])

    harness.visit()

    assert harness.kinds() == ["TrainingStarted"]
    assert harness.steps() == [(1, step) for step in range(2, 7)]
    assert harness.bucket_objects.keys() == []


def test_stop_before_removal_imports_nothing_twice(
    harness: ReportImportHarness,
) -> None:
    harness.post(sender_of(1), *words(harness.clock, 1, 3))
    harness.weather.error, harness.weather.operation = CheckpointStoreUnreachable("gone"), "delete"
    harness.visit()
    left = harness.bucket_objects.keys()

    harness.weather.error = None
    harness.collector = harness.new_collector()
    harness.visit()

    assert left == ["inbox/attempt-1/000000000001-000000000003"]
    assert harness.bucket_objects.keys() == []
    assert harness.kinds() == ["TrainingStarted"]
    assert harness.steps() == [(1, 2), (1, 3)]


def test_long_backlog_is_imported_in_several_transactions(harness: ReportImportHarness) -> None:
    harness.post(sender_of(1), *words(harness.clock, 1, 2500))

    harness.visit()

    assert harness.journal.marks(JOB) == {1: 2500}
    assert harness.bucket_objects.keys() == []


def test_two_unregistered_incarnations_are_distinguished(
    harness: ReportImportHarness,
) -> None:
    """Neither worker has a number. All reports were posted during an outage of the service."""
    harness.post("aa", *words(harness.clock, 1, 3))
    harness.clock.advance(60)
    harness.post("aa", leaving(harness.clock, 4))
    harness.clock.advance(60)
    earlier, here = harness.seconds(), harness.seconds() + 60
    harness.clock.advance(120)
    harness.post("bb", *words(harness.clock, 1, 2))

    before = harness.visit()
    harness.look(lost(earlier), ready(here, attempt=2))
    after = harness.visit()

    assert (before, after) == (0, 3)
    assert harness.kinds() == ["TrainingStarted", "WorkerLeft", "TrainingStarted"]
    assert harness.steps() == [(1, 2), (1, 3), (2, 2)]
    assert harness.journal.read(JOB).attempt == harness.journal.read(JOB).started_attempt == 2
    assert harness.bucket_objects.keys() == []


def test_last_reports_are_imported_after_the_successor_reported(
    harness: ReportImportHarness,
) -> None:
    harness.post("aa", *words(harness.clock, 1, 3))
    harness.look()
    harness.visit()
    harness.post("aa", leaving(harness.clock, 4))
    harness.clock.advance(30)
    harness.collector.incarnations.register_posted(JOB, "bb", harness.clock.now(), (2, 0))
    harness.look(lost(harness.seconds()), ready(harness.seconds(), attempt=2))

    harness.visit()

    assert harness.kinds() == ["TrainingStarted", "WorkerLeft"]


def test_archives_of_a_replaced_worker_are_discarded(
    harness: ReportImportHarness,
) -> None:
    harness.look()
    harness.post("aa", *words(harness.clock, 1, 3))
    harness.clock.advance(30)
    harness.collector.incarnations.register_posted(JOB, "bb", harness.clock.now(), (1, 0))
    harness.clock.advance(30)
    harness.post("aa", leaving(harness.clock, 4))
    harness.look()

    harness.visit()

    assert harness.kinds() == ["TrainingStarted"]
    assert harness.bucket_objects.keys() == []


@pytest.mark.parametrize("size", [0, 1, 20, 200, -1])
def test_torn_archive_stays_and_blocks_its_successors(
    harness: ReportImportHarness, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Its worker later writes the same archive again."""
    harness.post(sender_of(1), *words(harness.clock, 1, 2))
    torn = harness.post(sender_of(1), *words(harness.clock, 3, 2))
    harness.post(sender_of(1), *words(harness.clock, 5, 2))
    harness.post(sender_of(2), *words(harness.clock, 1, 1))
    whole = harness.bucket_objects.objects[torn]
    harness.bucket_objects.put(torn, whole[0][:size])

    harness.visit()
    harness.visit()
    left = harness.bucket_objects.keys()
    harness.bucket_objects.put(torn, whole[0])
    harness.visit(3600)

    assert left == [torn, "inbox/attempt-1/000000000005-000000000006"]
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [JOB]
    assert f"{torn} cannot be read" in caplog.text
    assert harness.steps() == [(1, step) for step in range(2, 7)]
    assert harness.bucket_objects.keys() == []


def test_oversized_archive_is_not_read(
    harness: ReportImportHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.bucket_objects.put(ArchiveKey("attempt-1", 1, 1).path, b"x" * (MAX_ARCHIVE_BYTES + 1))

    harness.visit()

    assert "it has 1048577 bytes, and 1048576 are allowed" in caplog.text


@pytest.mark.parametrize(
    "place",
    [
        '"attempt":1e999,"before":0',
        '"attempt":1,"before":1e999',
        f'"attempt":{10**23},"before":0',
        f'"attempt":1,"before":{10**23}',
        '"attempt":0,"before":0',
        '"attempt":1,"before":-3',
    ],
)
def test_archive_of_an_impossible_position_blocks_no_other(
    harness: ReportImportHarness, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """The importer would skip and delete reports below number 1.

    A number beyond the database's range would abort the import.
    """
    key = harness.post("aa", *words(harness.clock, 1, 2), place=(1, 0))
    whole = harness.bucket_objects.objects[key][0]
    harness.bucket_objects.put(key, whole.replace(b'"attempt":1,"before":0', place.encode(), 1))
    harness.post("bb", *words(harness.clock, 1, 2), place=(2, 0))

    harness.visit()

    assert harness.bucket_objects.keys() == [key]
    assert f"{key} cannot be read, and later archives wait" in caplog.text
    assert harness.steps() == [(2, 2)]


def test_archive_with_an_absurd_report_count_is_rejected(
    harness: ReportImportHarness, caplog: pytest.LogCaptureFixture
) -> None:
    key = harness.post(sender_of(1), *words(harness.clock, 1, 2))
    bold = ArchiveKey(sender_of(1), 1, 999_999_999_999).path
    harness.bucket_objects.put(bold, harness.bucket_objects.objects.pop(key)[0])

    harness.visit()

    assert f"{bold} cannot be read" in caplog.text
    assert "it does not contain the reports 1 to 999999999999" in caplog.text


def test_reports_after_a_gap_are_deferred(
    harness: ReportImportHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """The missing report may still arrive over HTTP."""
    found = [*words(harness.clock, 1, 6)]
    harness.post(sender_of(1), *found[3:])
    harness.visit()
    before = harness.bucket_objects.keys()
    harness.journal.ingest(JOB, 1, [Report(1, r.n, r.at, r.kind, r.body) for r in found[:3]])

    for _ in range(20):
        harness.visit()

    assert before == ["inbox/attempt-1/000000000004-000000000006"]
    assert "waits for reports 1 to 3, which are missing" in caplog.text
    assert harness.steps() == [(1, step) for step in range(2, 7)]


def test_malformed_reports_do_not_block_other_workers(
    harness: ReportImportHarness, caplog: pytest.LogCaptureFixture
) -> None:
    bad = report(1, ReportKind.TRAINING_STARTED, harness.clock.now(), step="three")
    harness.post(sender_of(1), bad)
    harness.post(sender_of(2), *words(harness.clock, 1, 2))

    harness.visit()

    assert "cannot be imported, and later archives wait: report 1 (training_started)" in caplog.text
    assert harness.steps() == [(2, 2)]


def test_reporting_job_causes_no_store_requests(harness: ReportImportHarness) -> None:
    harness.visit()
    harness.looks.clear()
    for n in range(1, 11):
        point = report(n, ReportKind.PROGRESS, harness.clock.now(), step=n, values={})
        harness.journal.ingest(JOB, 1, [Report(1, point.n, point.at, point.kind, point.body)])
        harness.visit()

    assert harness.looks == []


def test_database_statements_do_not_grow_with_reporting_jobs(harness: ReportImportHarness) -> None:
    """A thousand jobs, one after the other, delayed concurrent reports by a fifth of a second."""
    polled, result = [], list[str]([JOB])
    for count in (1, 20):
        for job_id in (f"job-{count}-{i}" for i in range(count)):
            job = harness.journal.submit(
                job_id, submitted(checkpoint={"store": "s3://bucket/runs"})
            )
            harness.journal.append(job, [launched(0), ready(1)])
            result.append(job_id)
        harness.visit(600)
        for job_id in result:
            n = 1 + harness.journal.marks(job_id).get(1, 0)
            point = report(n, ReportKind.PROGRESS, harness.clock.now(), step=n, values={})
            harness.journal.ingest(job_id, 1, [Report(1, n, point.at, point.kind, point.body)])
        with statements(harness.engine) as executed:
            harness.visit(600)
        polled.append(len(executed))

    assert polled[0] == polled[1]


def test_empty_store_is_polled_at_growing_intervals(
    harness: ReportImportHarness,
) -> None:
    for _ in range(120):
        harness.visit()

    assert 12 <= len(harness.looks) <= 16


def test_store_is_polled_soon_after_new_nodes(harness: ReportImportHarness) -> None:
    for _ in range(60):
        harness.visit()
    harness.looks.clear()
    harness.look(lost(harness.seconds()), ready(harness.seconds(), attempt=2))
    harness.clock.advance(300)

    harness.visit()
    harness.visit()

    assert len(harness.looks) >= 1
    harness.post(sender_of(2), *words(harness.clock, 1, 2))
    assert sum(harness.visit() for _ in range(4)) == 1


def test_jobs_without_a_store_or_launch_are_skipped(engine: Engine, clock: FixedClock) -> None:
    harness = ReportImportHarness(engine, clock, checkpoint=None)
    harness.visit()
    harness.look(launched(0), ready(1))
    harness.visit()
    harness.visit()

    assert harness.looks == []


def test_last_archives_are_imported_after_the_end(harness: ReportImportHarness) -> None:
    harness.visit()
    harness.look(finished(harness.seconds()))
    harness.watches.remove(JOB)
    harness.clock.advance(60)
    harness.post(sender_of(1), *words(harness.clock, 1, 2))

    imported = sum(harness.visit() for _ in range(20))
    for _ in range(120):
        harness.visit()
    harness.looks.clear()
    harness.visit(3600)

    assert imported == 1
    assert harness.looks == []
    assert harness.journal.read(JOB).state is State.ENDED


def test_restarted_service_imports_reports_of_ended_jobs(
    harness: ReportImportHarness,
) -> None:
    harness.look(finished(harness.seconds()))
    harness.watches.remove(JOB)
    harness.post(sender_of(1), *words(harness.clock, 1, 2))

    harness.collector = harness.new_collector()

    assert harness.visit() == 1


@pytest.mark.parametrize(
    "error", [CheckpointStoreRefused("no"), CheckpointStoreUnreachable("gone")]
)
def test_store_error_is_logged_once_and_retried(
    harness: ReportImportHarness,
    caplog: pytest.LogCaptureFixture,
    error: CheckpointStoreRefused | CheckpointStoreUnreachable,
) -> None:
    harness.post(sender_of(1), *words(harness.clock, 1, 2))
    harness.weather.error = error
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            harness.visit()
    harness.weather.error = None

    imported = sum(harness.visit() for _ in range(40))

    assert imported == 1
    assert [r.getMessage() for r in caplog.records] == [
        f"reports of {JOB} cannot be imported: {error.detail}"
    ]


def test_wrong_store_clock_does_not_change_the_attempt(engine: Engine, clock: FixedClock) -> None:
    """The store dates posted reports. An error of an hour would assign them to another attempt."""
    harness = ReportImportHarness(engine, clock)
    harness.look(
        launched(0), ready(1), lost(5), ready(6, attempt=2), lost(50), ready(60, attempt=3)
    )
    clock.advance(30)
    fast = FixedClock(clock.now() + timedelta(hours=1))
    harness.bucket_objects.clock = fast
    harness.post("aa", *words(clock, 1, 2))
    clock.advance(60)
    fast.advance(60)
    harness.look()

    harness.visit(0)

    assert harness.steps() == [(2, 2)]
