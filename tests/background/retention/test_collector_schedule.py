"""The checkpoint collector: its schedule, its messages without access, and persistence."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from holdfast.domain.events import Outcome
from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable
from support.events import at, finished, left, lost, ready
from support.memory_store import StoreFaults
from support.retention import GRACE_S, NewRetentionHarness, RetentionHarness, name
from worker.support.run_driver import wait_until


def test_store_is_scanned_often_in_training_and_seldom_in_waits(
    new_harness: NewRetentionHarness,
) -> None:
    requests: list[str] = []
    harness = new_harness(keep=9, before=lambda operation, key: requests.append(operation))
    harness.save_five()

    def scans(minutes: int) -> int:
        before = requests.count("directories")
        for _ in range(minutes):
            harness.visit(60)
        return requests.count("directories") - before

    training_on = scans(5)
    harness.tell(left(1000, step=50), lost(1001))
    result, waiting = scans(1), scans(20)
    harness.tell(ready(3000, attempt=2))
    new_scans = scans(1)

    assert (training_on, result, waiting, new_scans) == (5, 1, 2, 1)


def test_checkpoints_are_deleted_on_time_while_a_job_waits(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()
    harness.tell(left(305, step=50), lost(306))

    for _ in range(6):
        harness.visit(60)

    assert harness.committed() == [40, 50]


def test_ended_job_is_collected_until_nothing_is_left(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()
    harness.upload(60)
    harness.tell(finished(350))

    for _ in range(40):
        harness.visit(3600)
    last_run_at = harness.tidiness.last_run_at
    last = harness.visit(10 * 86_400)

    assert harness.committed() == harness.data() == [40, 50]
    assert last == 0
    assert last_run_at
    assert last_run_at < harness.clock.now()


def test_job_that_ended_without_saving_is_scanned_once_more(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.visit(0)
    harness.tell(finished(5, Outcome.FAILED, exit_code=1))

    visits = [harness.visit(600) for _ in range(5)]

    assert sum(visits) <= 2
    assert visits[-1] == 0


# Unusable stores


def test_refused_access_is_logged_once_and_retried_rarely(
    new_harness: NewRetentionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    faults = StoreFaults(CheckpointStoreRefused("An error occurred (AccessDenied): Access Denied"))
    harness = new_harness(before=faults)
    harness.save_five()

    with caplog.at_level(logging.WARNING, logger="holdfast.background.retention"):
        visits = [harness.visit(60) for _ in range(12 * 60)]

    message = "s3://bucket/runs/job-1: An error occurred (AccessDenied): Access Denied"
    assert (harness.tidiness.error, harness.tidiness.since) == (message, at(360))
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage() == f"checkpoint retention of job-1 failed: {message}"
    assert 10 < sum(visits) < 25
    faults.error = None
    harness.visit(86_400)
    assert (harness.tidiness.error, harness.tidiness.since) == (None, None)
    assert harness.committed() == [40, 50]


def test_unreachable_store_is_retried_soon(
    new_harness: NewRetentionHarness,
) -> None:
    faults = StoreFaults(CheckpointStoreUnreachable("Could not connect"))
    harness = new_harness(before=faults)
    harness.save_five()

    visits = [harness.visit(60) for _ in range(3)]

    assert visits == [1, 1, 1]
    assert harness.told_gone() == []
    assert harness.committed() == [10, 20, 30, 40, 50]


def test_refused_deletion_is_shown_and_nothing_recorded(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness(
        before=StoreFaults(CheckpointStoreRefused("AccessDenied: DeleteObject"), "delete")
    )
    harness.save_five()

    harness.visit(GRACE_S)

    assert harness.tidiness.error == "s3://bucket/runs/job-1: AccessDenied: DeleteObject"
    assert harness.told_gone() == []


def test_interrupted_deletion_records_the_deleted_ones(new_harness: NewRetentionHarness) -> None:
    def refuse(operation: str, key: str) -> None:
        if (operation, key) == ("delete", name(20).commit_key):
            raise CheckpointStoreRefused("no")

    harness = new_harness(before=refuse)
    harness.save_five()

    harness.visit(GRACE_S)

    assert harness.committed() == [20, 30, 40, 50]
    assert harness.told_gone() == [("superseded", [10])]


def test_store_missing_every_checkpoint_is_an_error(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()
    harness.bucket_objects.objects.clear()

    harness.visit(GRACE_S)

    assert "all 5 reported checkpoints are missing" in (harness.tidiness.error or "")
    assert harness.told_gone() == []


def test_missing_store_of_an_ended_job_is_not_scanned_forever(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()
    harness.tell(finished(350))
    harness.bucket_objects.objects.clear()

    visits = [harness.visit(86_400) for _ in range(20)]

    assert sum(visits[:7]) >= 6
    assert sum(visits[10:]) == 0
    assert harness.tidiness.error


# As a background task


@contextmanager
def running_collector(harness: RetentionHarness) -> Iterator[None]:
    """The collector runs in the background."""
    stopped = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    begun = threading.Event()

    async def go_about() -> None:
        loops.append(asyncio.get_running_loop())
        begun.set()
        task = asyncio.create_task(harness.janitor.run())
        await stopped.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(go_about()))
    thread.start()
    assert begun.wait(120)
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(stopped.set)
        thread.join(120)


def test_error_in_one_run_does_not_stop_the_collector(
    new_harness: NewRetentionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    met = threading.Semaphore(0)

    def stumble(operation: str, key: str) -> None:
        harness.clock.advance(3600)  # Its lease has expired.
        met.release()
        raise ZeroDivisionError("a bug of ours")

    harness = new_harness(before=stumble)

    with running_collector(harness):
        assert met.acquire(timeout=120)
        assert met.acquire(timeout=120)

    assert (
        "unexpected error in checkpoint retention of job-1; it is retried when its lease expires"
        in caplog.text
    )


def test_job_whose_visit_outlasts_its_lease_is_due_again_soon(
    new_harness: NewRetentionHarness,
) -> None:
    due_soon = threading.Event()

    def outlast(operation: str, key: str) -> None:
        if due_soon.is_set():
            return
        harness.clock.advance(3600)
        now = harness.clock.now()
        wait_until(lambda: now < harness.due_at() <= now + timedelta(seconds=60))
        due_soon.set()

    harness = new_harness(before=outlast)

    with running_collector(harness):
        assert due_soon.wait(120)


def test_collector_runs_until_stopped(new_harness: NewRetentionHarness) -> None:
    gone = threading.Event()

    def see(operation: str, key: str) -> None:
        if (operation, key) == ("look", "probes/") and harness.data() == [40, 50]:
            gone.set()  # In the scan after the one that has deleted the others.

    harness = new_harness(before=see)
    harness.save_five()
    harness.clock.advance(GRACE_S)

    with running_collector(harness):
        while not gone.wait(0.05):
            harness.clock.advance(600)

    assert harness.committed() == harness.data() == [40, 50]
