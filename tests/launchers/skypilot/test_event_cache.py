"""A launch's history is read by the page: what is known is not read again, and nothing in between is missed."""

from __future__ import annotations

import pytest
from fake_skypilot import Job, JobSimulation
from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.launchers.skypilot.cached_reads import PAGE, EventCache
from support.skypilot.launcher import NewSkyPilotHarness, SkyPilotHarness, do


@pytest.fixture
def harness(new_harness: NewSkyPilotHarness) -> SkyPilotHarness:
    """One with a job that was never observed."""
    harness = new_harness(JobSimulation(queue_s=1e9))
    harness.submit()
    harness.pass_time(10)
    return harness


def add_job_events(harness: SkyPilotHarness, job: Job, count: int) -> None:
    """Let so much more happen to a job."""
    for _ in range(count):
        harness.pass_time(1)
        job.tell("PENDING", f"Job is in backoff at {harness.clock.now()}")


def readings(harness: SkyPilotHarness) -> list[int | None]:
    """How much was asked for, each time."""
    return [body["limit"] for body in harness.posted("/jobs/events")]


def test_full_history_is_read_only_after_a_gap(
    harness: SkyPilotHarness,
) -> None:
    [job] = harness.jobs()
    chronicle = EventCache(harness.launcher._client, harness.book)
    lengths = []
    for news in (5, 3 * PAGE, 1, PAGE // 2, 2 * PAGE):
        add_job_events(harness, job, news)
        lengths.append(len(do(chronicle.read("job-1", job.number))) == len(job.events))

    assert all(lengths)
    assert readings(harness) == [PAGE, PAGE, None, PAGE, PAGE, PAGE, None]


def test_events_are_returned_in_chronological_order(harness: SkyPilotHarness) -> None:
    [job] = harness.jobs()
    chronicle = EventCache(harness.launcher._client, harness.book)
    result: tuple[EngineEvent, ...] = ()
    for news in (5, 2 * PAGE, 10):
        add_job_events(harness, job, news)
        result = do(chronicle.read("job-1", job.number))

    assert list(result) == sorted(result, key=lambda event: event.at)
    assert harness.book.events("job-1") == result


def test_peek_returns_new_events_without_storing_them(harness: SkyPilotHarness) -> None:
    [job] = harness.jobs()
    chronicle = EventCache(harness.launcher._client, harness.book)
    add_job_events(harness, job, 5)
    known = do(chronicle.read("job-1", job.number))
    add_job_events(harness, job, 5)

    peeked = do(chronicle.peek("job-1", job.number))

    assert harness.book.events("job-1") == known
    assert peeked == do(chronicle.read("job-1", job.number))
