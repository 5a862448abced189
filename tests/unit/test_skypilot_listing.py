"""The queue of SkyPilot: asked for as seldom as may be, waited for while SkyPilot is at it, and believed as a whole."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.cached_reads import LONGEST
from holdfast.store.tables.launches import launches
from skyhouse import NAMES, NewHouse, SkyHouse, do
from skystand import Line, Nature
from sqlalchemy import delete

QUEUE = "/jobs/queue/v2"


@pytest.fixture
def house(new_house: NewHouse) -> SkyHouse:
    """One whose job is up, and stays up."""
    house = new_house(Nature(runs_s=100_000))
    house.until(LaunchStatus.UP)
    return house


def looked(house: SkyHouse) -> Observation | None:
    """What was seen; None if nothing was, after the time that the door waits for an answer."""
    try:
        return house.look()
    except LauncherUnreachable:
        house.pass_time(30)
        return None


def test_a_listing_that_takes_longer_than_an_answer_may_is_waited_for(house: SkyHouse) -> None:
    """To ask for another one instead makes a server still slower that is slow already."""
    house.pass_time(31)
    house.server.list_s = 70
    before = len(house.posted(QUEUE))

    seen = [looked(house) for _ in range(4)]

    assert seen[:3] == [None, None, None]
    assert seen[3]
    assert seen[3].standing is LaunchStatus.UP
    assert len(house.posted(QUEUE)) == before + 1


def test_a_listing_that_never_comes_is_given_up_in_the_end(house: SkyHouse) -> None:
    house.pass_time(31)
    house.server.list_s = 1e9
    before = len(house.posted(QUEUE))

    while looked(house) is None and len(house.posted(QUEUE)) < before + 2:
        pass

    first, second = (r.made_at for r in list(house.truth.requests.values())[-50:] if r.name == "sky.jobs.queue_v2" and r.status == "PENDING")  # fmt: skip
    assert second - first >= LONGEST


def test_a_listing_has_no_jobs_that_are_over(new_house: NewHouse) -> None:
    """Thousands may be, and each would cost SkyPilot's server time in every listing."""
    house = new_house(Nature(runs_s=60))
    for number in range(4):
        house.until(LaunchStatus.ENDED, f"job-{number}")
    house.until(LaunchStatus.UP, "last-1")
    house.pass_time(31)

    listing = do(house.launcher._listings.newest())

    assert [row.name for row in listing.rows] == [NAMES.of("last-1")]
    assert house.posted(QUEUE)[-1]["skip_finished"]


def test_a_job_that_is_over_is_asked_for_once(new_house: NewHouse) -> None:
    house = new_house(Nature(runs_s=60))
    house.until(LaunchStatus.ENDED)
    before = len(house.posted(QUEUE))

    for _ in range(5):
        assert house.look().standing is LaunchStatus.ENDED

    assert len(house.posted(QUEUE)) == before


def test_a_job_of_a_forgotten_launch_is_found_though_it_is_over(new_house: NewHouse) -> None:
    """The database was put back to an older state, and another replica asks for what has run already."""
    house = new_house(Nature(runs_s=60))
    house.until(LaunchStatus.ENDED)
    with house.book._engine.begin() as connection:
        connection.execute(delete(launches))
    house.launcher = house.replica()

    house.submit()

    assert len(house.posted("/jobs/launch")) == 1


class Garbles(Line):
    """A line whose next result is no result."""

    garbles = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await super().handle_async_request(request)
        if self.garbles and request.url.path == "/api/get":
            return httpx2.Response(200, json={"return_value": '{"jobs": [{'})
        return reply


def test_a_listing_that_came_and_cannot_be_read_is_asked_for_anew(house: SkyHouse) -> None:
    line = Garbles(house.server)
    listings = house.replica(line)._listings
    line.garbles = True
    with pytest.raises(LauncherUnreachable):
        do(listings.newest())
    line.garbles = False

    listing = do(listings.newest())

    assert [row.engine_id for row in listing.rows] == [1]


@pytest.mark.parametrize("name", [None, 7, "", ...])
def test_a_job_whose_name_is_not_told_is_not_one_that_is_lost(house: SkyHouse, name: Any) -> None:
    """What is lost is launched anew, beside what runs."""
    [row] = house.server.queue()
    odd = {**row, "job_name": name}
    if name is ...:
        del odd["job_name"]
    house.server._queue = lambda body: {"jobs": [odd], "total": 1}  # type: ignore[method-assign]

    for _ in range(5):
        house.pass_time(31)
        with pytest.raises(LauncherUnreachable, match="cannot be understood"):
            house.look()

    told = house.book.find("job-1")
    assert told
    assert told.missing_since is None


@pytest.mark.parametrize("tz", ["Europe/Berlin", "America/New_York", "Asia/Kolkata"])
def test_a_server_that_does_not_run_in_utc_is_told_to(new_house: NewHouse, tz: str) -> None:
    """Its events have local times, its listings seconds: after a recovery the nodes would be hidden for ever."""
    house = new_house(Nature(runs_s=100_000, mtbf_s=600))
    house.truth.tz = ZoneInfo(tz)
    house.submit()
    house.pass_time(60)

    for _ in range(20):
        with pytest.raises(LauncherUnreachable, match="TZ=UTC"):
            house.look()
        house.pass_time(100)


def test_a_job_that_waited_long_for_its_turn_is_understood(new_house: NewHouse) -> None:
    house = new_house(Nature(runs_s=100_000, queue_s=50_000))

    assert house.until(LaunchStatus.UP, limit_s=100_000).placements == 1
