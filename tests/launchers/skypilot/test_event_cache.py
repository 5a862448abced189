"""The cache of a launch's events: known events are not read again, and none is missed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from fake_skypilot import Job, JobSimulation
from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.cached_reads import PAGE, EventCache
from holdfast.launchers.skypilot.models import ManagedJob, ManagedJobStatus
from support.skypilot.launcher import NewSkyPilotHarness, SkyPilotHarness, do

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


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


def row(job: Job, status: ManagedJobStatus = ManagedJobStatus.STARTING) -> ManagedJob:
    """A job in a listing; only a pending one is queued."""
    is_queued = status is ManagedJobStatus.PENDING
    return ManagedJob(
        engine_id=job.number,
        name=job.name,
        status=status,
        schedule_state="WAITING" if is_queued else "ALIVE",
        location=None,
        region=None,
        resources="",
        nodes=None,
        started_at=None if is_queued else MOMENT,
        up_since=None,
        controller_started_at=None,
    )


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
        lengths.append(len(do(cache.read("job-1", row(job)))) == len(job.events))

    assert all(lengths)
    assert readings(harness) == [PAGE, PAGE, None, PAGE, PAGE, PAGE, None]


def test_events_are_returned_in_chronological_order(harness: SkyPilotHarness) -> None:
    [job] = harness.jobs()
    cache = EventCache(harness.launcher._client, harness.book)
    result: tuple[EngineEvent, ...] = ()
    for new_events in (5, 2 * PAGE, 10):
        add_job_events(harness, job, new_events)
        result = do(cache.read("job-1", row(job)))

    assert list(result) == sorted(result, key=lambda event: event.at)
    assert harness.book.events("job-1") == result


def test_peek_returns_new_events_without_storing_them(harness: SkyPilotHarness) -> None:
    [job] = harness.jobs()
    cache = EventCache(harness.launcher._client, harness.book)
    add_job_events(harness, job, 5)
    known = do(cache.read("job-1", row(job)))
    add_job_events(harness, job, 5)

    peeked = do(cache.peek("job-1", job.number))

    assert harness.book.events("job-1") == known
    assert peeked == do(cache.read("job-1", row(job)))


def test_events_of_a_queued_job_are_read_once_per_row(harness: SkyPilotHarness) -> None:
    [job] = harness.jobs()
    cache = EventCache(harness.launcher._client, harness.book)
    queued = row(job, ManagedJobStatus.PENDING)
    first = do(cache.read("job-1", queued))
    add_job_events(harness, job, 1)

    unchanged = do(cache.read("job-1", queued))
    begun = do(cache.read("job-1", replace(queued, started_at=MOMENT)))

    assert unchanged == first
    assert len(begun) == len(first) + 1
    assert readings(harness) == [PAGE, PAGE]


def test_events_of_a_started_job_are_read_at_each_poll(harness: SkyPilotHarness) -> None:
    [job] = harness.jobs()
    cache = EventCache(harness.launcher._client, harness.book)
    lengths = []
    for _ in range(3):
        add_job_events(harness, job, 1)
        lengths.append(len(do(cache.read("job-1", row(job)))))

    assert lengths == [lengths[0], lengths[0] + 1, lengths[0] + 2]


def test_failed_read_of_a_queued_job_is_repeated(harness: SkyPilotHarness) -> None:
    [job] = harness.jobs()
    cache = EventCache(harness.launcher._client, harness.book)
    queued = row(job, ManagedJobStatus.PENDING)
    harness.line.dark = True
    with pytest.raises(LauncherUnreachable):
        do(cache.read("job-1", queued))
    harness.line.dark = False

    assert do(cache.read("job-1", queued))
