"""The cache of a launch's events: known events are not read again, and none is missed."""

from __future__ import annotations

import pytest
from fake_skypilot import Job, JobSimulation
from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.launchers.skypilot.cached_reads import PAGE, EventCache
from support.skypilot.launcher import NewSkyPilotHarness, SkyPilotHarness, do


@pytest.fixture
def harness(new_harness: NewSkyPilotHarness) -> SkyPilotHarness:
    """A harness with a job that was never observed."""
    harness = new_harness(JobSimulation(queue_s=1e9))
    harness.submit()
    harness.pass_time(10)
    return harness


def add_job_events(harness: SkyPilotHarness, job: Job, count: int) -> None:
    """Add events to a job."""
    for _ in range(count):
        harness.pass_time(1)
        job.add_event("PENDING", f"Job is in backoff at {harness.clock.now()}")


def readings(harness: SkyPilotHarness) -> list[int | None]:
    """The requested number of events of each read."""
    return [body["limit"] for body in harness.posted("/jobs/events")]


def test_full_history_is_read_only_after_a_gap(
    harness: SkyPilotHarness,
) -> None:
    [job] = harness.jobs()
    cache = EventCache(harness.launcher._client, harness.book)
    lengths = []
    for new_events in (5, 3 * PAGE, 1, PAGE // 2, 2 * PAGE):
        add_job_events(harness, job, new_events)
        lengths.append(len(do(cache.read("job-1", job.number))) == len(job.events))

    assert all(lengths)
    assert readings(harness) == [PAGE, PAGE, None, PAGE, PAGE, PAGE, None]


def test_events_are_returned_in_chronological_order(harness: SkyPilotHarness) -> None:
    [job] = harness.jobs()
    cache = EventCache(harness.launcher._client, harness.book)
    result: tuple[EngineEvent, ...] = ()
    for new_events in (5, 2 * PAGE, 10):
        add_job_events(harness, job, new_events)
        result = do(cache.read("job-1", job.number))

    assert list(result) == sorted(result, key=lambda event: event.at)
    assert harness.book.events("job-1") == result


def test_peek_returns_new_events_without_storing_them(harness: SkyPilotHarness) -> None:
    [job] = harness.jobs()
    cache = EventCache(harness.launcher._client, harness.book)
    add_job_events(harness, job, 5)
    known = do(cache.read("job-1", job.number))
    add_job_events(harness, job, 5)

    peeked = do(cache.peek("job-1", job.number))

    assert harness.book.events("job-1") == known
    assert peeked == do(cache.read("job-1", job.number))
