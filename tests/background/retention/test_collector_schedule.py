"""The checkpoint collector: its schedule, its messages without access, and its persistence."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from holdfast.domain.events import Outcome
from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable
from support.events import at, finished, left, lost, ready
from support.memory_store import StoreFaults
from support.retention import GRACE_S, NewRetentionHarness, RetentionHarness, name


def test_store_is_scanned_often_in_training_and_seldom_in_waits(
    new_harness: NewRetentionHarness,
) -> None:
    asked: list[str] = []
    harness = new_harness(keep=9, before=lambda operation, key: asked.append(operation))
    harness.save_five()

    def looks(minutes: int) -> int:
        before = asked.count("directories")
        for _ in range(minutes):
            harness.visit(60)
        return asked.count("directories") - before

    training_on = looks(5)
    harness.tell(left(1000, step=50), lost(1001))
    result, waiting = looks(1), looks(20)
    harness.tell(ready(3000, attempt=2))
    news = looks(1)

    assert (training_on, result, waiting, news) == (5, 1, 2, 1)


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
    tidied_at = harness.tidiness.last_run_at
    last = harness.visit(10 * 86_400)

    assert harness.committed() == harness.data() == [40, 50]
    assert last == 0
    assert tidied_at
    assert tidied_at < harness.clock.now()


def test_a_job_that_ended_before_it_saved_is_looked_at_once_more(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.visit(0)
    harness.tell(finished(5, Outcome.FAILED, exit_code=1))

    visits = [harness.visit(600) for _ in range(5)]

    assert sum(visits) <= 2
    assert visits[-1] == 0


# Stores that cannot be used


def test_refused_access_is_logged_once_and_retried_rarely(
    new_harness: NewRetentionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    weather = StoreFaults(CheckpointStoreRefused("An error occurred (AccessDenied): Access Denied"))
    harness = new_harness(before=weather)
    harness.save_five()

    with caplog.at_level(logging.WARNING, logger="holdfast.background.retention"):
        visits = [harness.visit(60) for _ in range(12 * 60)]

    trouble = "s3://bucket/runs/job-1: An error occurred (AccessDenied): Access Denied"
    assert (harness.tidiness.error, harness.tidiness.since) == (trouble, at(360))
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage() == f"checkpoint retention of job-1 failed: {trouble}"
    assert 10 < sum(visits) < 25
    weather.error = None
    harness.visit(86_400)
    assert (harness.tidiness.error, harness.tidiness.since) == (None, None)
    assert harness.committed() == [40, 50]


def test_unreachable_store_is_retried_soon(
    new_harness: NewRetentionHarness,
) -> None:
    weather = StoreFaults(CheckpointStoreUnreachable("Could not connect"))
    harness = new_harness(before=weather)
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


def test_another_store_than_that_of_the_nodes_is_taken_for_one(
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


# In its own tasks


@contextmanager
def tidying(harness: RetentionHarness) -> Iterator[None]:
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
    assert begun.wait(30)
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(stopped.set)
        thread.join(30)


def test_a_bug_in_one_visit_is_not_the_end_of_tidying(
    new_harness: NewRetentionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    met = threading.Semaphore(0)

    def stumble(operation: str, key: str) -> None:
        harness.clock.advance(3600)  # Its lease is over at once.
        met.release()
        raise ZeroDivisionError("a bug of ours")

    harness = new_harness(before=stumble)

    with tidying(harness):
        assert met.acquire(timeout=30)
        assert met.acquire(timeout=30)

    assert (
        "unexpected error in checkpoint retention of job-1; it is retried when its lease expires"
        in caplog.text
    )


def test_collector_runs_until_stopped(new_harness: NewRetentionHarness) -> None:
    gone = threading.Event()

    def see(operation: str, key: str) -> None:
        if (operation, key) == ("look", "probes/") and harness.data() == [40, 50]:
            gone.set()  # In the visit after the one that has removed the others.

    harness = new_harness(before=see)
    harness.save_five()
    harness.clock.advance(GRACE_S)

    with tidying(harness):
        while not gone.wait(0.05):
            harness.clock.advance(600)

    assert harness.committed() == harness.data() == [40, 50]
