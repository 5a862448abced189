"""The cached queue of SkyPilot: rarely requested, awaited while slow, and used as a whole."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest
from fake_skypilot import FaultyTransport, JobSimulation
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.cached_reads import MAX_LISTING_TIME
from holdfast.store.tables.launches import launches
from sqlalchemy import delete
from support.skypilot.launcher import NAMES, NewSkyPilotHarness, SkyPilotHarness, do

QUEUE = "/jobs/queue/v2"


@pytest.fixture
def harness(new_harness: NewSkyPilotHarness) -> SkyPilotHarness:
    """A harness whose job is up and stays up."""
    harness = new_harness(JobSimulation(runs_s=100_000))
    harness.until(LaunchStatus.UP)
    return harness


def observe_once(harness: SkyPilotHarness) -> Observation | None:
    """Observe within the client's timeout; return None without a result."""
    try:
        return harness.look()
    except LauncherUnreachable:
        harness.pass_time(30)
        return None


def test_slow_queue_listing_is_awaited_without_a_second_request(
    harness: SkyPilotHarness,
) -> None:
    """A second request would slow down a server that is already slow."""
    harness.pass_time(31)
    harness.server.list_s = 70
    before = len(harness.posted(QUEUE))

    seen = [observe_once(harness) for _ in range(4)]

    assert seen[:3] == [None, None, None]
    assert seen[3]
    assert seen[3].status is LaunchStatus.UP
    assert len(harness.posted(QUEUE)) == before + 1


def test_listing_without_response_times_out(harness: SkyPilotHarness) -> None:
    harness.pass_time(31)
    harness.server.list_s = 1e9
    before = len(harness.posted(QUEUE))

    while observe_once(harness) is None and len(harness.posted(QUEUE)) < before + 2:
        pass

    first, second = (r.made_at for r in list(harness.state.requests.values())[-50:] if r.name == "sky.jobs.queue_v2" and r.status == "PENDING")  # fmt: skip
    assert second - first >= MAX_LISTING_TIME


def test_listing_excludes_ended_jobs(new_harness: NewSkyPilotHarness) -> None:
    """A cluster may have thousands, and each would slow down every listing."""
    harness = new_harness(JobSimulation(runs_s=60))
    for number in range(4):
        harness.until(LaunchStatus.ENDED, f"job-{number}")
    harness.until(LaunchStatus.UP, "last-1")
    harness.pass_time(31)

    listing = do(harness.launcher._listings.newest())

    assert [row.name for row in listing.rows] == [NAMES.job_name("last-1")]
    assert harness.posted(QUEUE)[-1]["skip_finished"]


def test_ended_job_is_requested_once(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness(JobSimulation(runs_s=60))
    harness.until(LaunchStatus.ENDED)
    before = len(harness.posted(QUEUE))

    for _ in range(5):
        assert harness.look().status is LaunchStatus.ENDED

    assert len(harness.posted(QUEUE)) == before


def test_ended_job_of_deleted_launch_row_is_found_and_not_rerun(
    new_harness: NewSkyPilotHarness,
) -> None:
    """The database was restored from a backup, and another replica submits an ended job again."""
    harness = new_harness(JobSimulation(runs_s=60))
    harness.until(LaunchStatus.ENDED)
    with harness.book._engine.begin() as connection:
        connection.execute(delete(launches))
    harness.launcher = harness.replica()

    harness.submit()

    assert len(harness.posted("/jobs/launch")) == 1


class GarblingTransport(FaultyTransport):
    """A transport whose next result is unreadable."""

    is_garbling = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await super().handle_async_request(request)
        if self.is_garbling and request.url.path == "/api/get":
            return httpx2.Response(200, json={"return_value": '{"jobs": [{'})
        return reply


def test_unreadable_queue_listing_is_requested_again(harness: SkyPilotHarness) -> None:
    transport = GarblingTransport(harness.server)
    listings = harness.replica(transport)._listings
    transport.is_garbling = True
    with pytest.raises(LauncherUnreachable):
        do(listings.newest())
    transport.is_garbling = False

    listing = do(listings.newest())

    assert [row.engine_id for row in listing.rows] == [1]


@pytest.mark.parametrize("name", [None, 7, "", ...])
def test_listing_with_nameless_job_does_not_mark_job_missing(
    harness: SkyPilotHarness, name: Any
) -> None:
    """A missing job is launched again, beside the running one."""
    [row] = harness.server.queue()
    odd = {**row, "job_name": name}
    if name is ...:
        del odd["job_name"]
    harness.server._queue = lambda body: {"jobs": [odd], "total": 1}  # type: ignore[method-assign]

    for _ in range(5):
        harness.pass_time(31)
        with pytest.raises(LauncherUnreachable, match="cannot parse"):
            harness.look()

    result = harness.book.find("job-1")
    assert result
    assert result.missing_since is None


@pytest.mark.parametrize("tz", ["Europe/Berlin", "America/New_York", "Asia/Kolkata"])
def test_server_outside_utc_is_rejected_with_a_hint(
    new_harness: NewSkyPilotHarness, tz: str
) -> None:
    """Events have local times and listings UTC seconds, so that a recovery would hide the nodes."""
    harness = new_harness(JobSimulation(runs_s=100_000, mtbf_s=600))
    harness.state.tz = ZoneInfo(tz)
    harness.submit()
    harness.pass_time(60)

    for _ in range(20):
        with pytest.raises(LauncherUnreachable, match="TZ=UTC"):
            harness.look()
        harness.pass_time(100)


@pytest.mark.full
def test_job_queued_for_a_long_time_becomes_up(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness(JobSimulation(runs_s=100_000, queue_s=50_000))

    assert harness.until(LaunchStatus.UP, limit_s=100_000).placements == 1
