"""Logs of jobs at SkyPilot: copied while their nodes stand, and read without any part in the launch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx2
import pytest
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.log_mirror import AT_ONCE
from skyhouse import NewHouse, SkyHouse, do
from skystand import Line, Nature, Server


def until_it_runs(house: SkyHouse, key: str = "job-1") -> None:
    house.until(LaunchStatus.UP, key)
    while house.jobs(key)[0].status != "RUNNING":
        house.pass_time(5)
    house.look(key)


@pytest.fixture
def house(new_house: NewHouse) -> SkyHouse:
    """One whose job is up, and stays up."""
    house = new_house(Nature(runs_s=100_000))
    assert list(do(house.launcher.logs("job-1"))) == []
    until_it_runs(house)
    return house


def text(house: SkyHouse) -> bytes:
    """All logs of the job, one after the other."""
    sources = do(house.launcher.logs("job-1"))
    return b"".join(house.launcher.read_log("job-1", item, 0, 1000) for item in sources)


def test_a_log_is_read_from_where_one_was(house: SkyHouse) -> None:
    house.server.prints = b"epoch 1\n"

    [source] = do(house.launcher.logs("job-1"))

    assert (source.attempt, source.node, source.rank, source.size_bytes) == (1, 0, None, 8)
    assert house.launcher.read_log("job-1", source, 2, 3) == b"och"
    assert house.launcher.read_log("job-1", source, 100, 3) == b""


def test_lines_for_the_display_of_skypilot_are_not_in_a_log(house: SkyHouse) -> None:
    alive = b'<sky-payload>"<heartbeat></heartbeat>"</sky-payload>\n'
    house.server.prints = b"epoch 1" + alive + b"\n<sky-payload>7</sky-payload>\n"

    assert text(house) == b"epoch 1\n<sky-payload>7</sky-payload>\n"


def test_what_was_read_once_never_vanishes(house: SkyHouse) -> None:
    house.server.prints = b"epoch 1\n"
    whole = text(house)

    house.clock.advance(10)
    house.server.prints = b""

    assert text(house) == whole == b"epoch 1\n"


def test_a_log_is_copied_though_nobody_reads_it(house: SkyHouse) -> None:
    """What was printed last before the nodes went is what people want to read."""
    house.server.prints = b"epoch 1\n"
    do(house.launcher.keep_log("job-1"))
    house.clock.advance(10)
    house.server.prints += b"CUDA error\n"
    do(house.launcher.keep_log("job-1"))
    house.truth.take_nodes(house.jobs()[0])
    house.line.dark = True

    assert text(house) == b"epoch 1\nCUDA error\n"


def test_of_a_copied_log_only_the_newest_lines_are_asked_for(house: SkyHouse) -> None:
    lines = [b"step %d\n" % n for n in range(5000)]
    copied = []
    for count in (3000, 3001, 4500, 5000):
        house.clock.advance(10)
        house.server.prints = b"".join(lines[:count])
        [source] = do(house.launcher.logs("job-1"))
        copied.append(house.launcher.read_log("job-1", source, 0, 1_000_000))

    assert copied == [b"".join(lines[:count]) for count in (3000, 3001, 4500, 5000)]
    assert [body["tail"] for body in house.posted("/jobs/logs")] == [None, 2000, 2000, 2000]


def test_lines_that_do_not_meet_the_copy_make_it_anew(house: SkyHouse) -> None:
    house.server.prints = first = b"".join(b"step %d\n" % n for n in range(100))
    do(house.launcher.keep_log("job-1"))
    house.clock.advance(10)
    house.server.prints = whole = first + b"".join(b"more %d\n" % n for n in range(2500))

    [source] = do(house.launcher.logs("job-1"))

    assert house.launcher.read_log("job-1", source, 0, 1_000_000) == whole


def test_a_log_is_not_asked_for_before_the_job_runs(new_house: NewHouse) -> None:
    """SkyPilot would answer once it does."""
    house = new_house(Nature(setup_s=3600))
    house.until(LaunchStatus.UP)

    do(house.launcher.keep_log("job-1"))

    assert not house.posted("/jobs/logs")


def test_a_log_under_a_number_that_is_not_listed_is_not_ours(house: SkyHouse) -> None:
    house.truth.lose_everything()
    house.pass_time(31)
    with pytest.raises(LauncherUnreachable):
        house.look()

    do(house.launcher.keep_log("job-1"))

    assert not house.posted("/jobs/logs")


def test_every_placement_has_a_log_of_its_own(new_house: NewHouse) -> None:
    house = new_house(Nature(runs_s=100_000, mtbf_s=300), seed=3)
    for placement in (1, 2):
        while house.until(LaunchStatus.UP).placements < placement:
            house.pass_time(5)
        house.server.prints = b"on nodes %d\n" % placement
        do(house.launcher.logs("job-1"))

    sources = do(house.launcher.logs("job-1"))

    assert [source.attempt for source in sources] == [1, 2]
    assert text(house) == b"on nodes 1\non nodes 2\n"


def test_however_many_follow_a_log_skypilot_is_asked_once_in_a_while(house: SkyHouse) -> None:
    """Ten seconds, in which two look four times a second."""
    before = len(house.server.posts)

    for _ in range(40):
        do(house.launcher.logs("job-1"))
        do(house.launcher.logs("job-1"))
        house.clock.advance(0.25)

    assert Counter(path for path, _ in house.server.posts[before:]) == {
        "/jobs/events": 4,
        "/jobs/logs": 4,
    }


def test_who_reads_while_a_log_is_copied_gets_what_there_is(house: SkyHouse) -> None:
    house.server.prints = b"epoch 1\n"
    do(house.launcher.logs("job-1"))
    house.clock.advance(10)

    async def read_while_it_is_copied() -> int:
        answered = asyncio.Event()

        async def until_answered() -> None:
            await answered.wait()

        house.line.wait = until_answered
        copying = asyncio.create_task(house.launcher.logs("job-1"))
        await asyncio.sleep(0)
        [source] = await house.launcher.logs("job-1")
        answered.set()
        await copying
        return source.size_bytes

    assert do(read_while_it_is_copied()) == 8


def test_to_read_a_log_does_nothing_to_a_launch(new_house: NewHouse) -> None:
    """Its request had failed after there was a job: whoever looks next cancels that, and asks anew."""
    house = new_house()
    house.truth.delay_s = 0
    house.truth.upload_s = 1000
    house.submit()
    while not house.jobs():
        house.pass_time(1)
    house.pass_time(31)
    house.look()
    house.truth.kill("interrupted")
    row, told = house.book.find("job-1"), house.book.told("job-1")

    for _ in range(3):
        do(house.launcher.logs("job-1"))
        house.pass_time(60)

    assert not house.posted("/jobs/cancel")
    assert (house.book.find("job-1"), house.book.told("job-1")) == (row, told)
    house.look()
    assert house.posted("/jobs/cancel")


@pytest.mark.parametrize("how", ["away", "forgetful"])
def test_a_copy_can_be_read_whatever_became_of_skypilot(house: SkyHouse, how: str) -> None:
    whole = text(house)
    house.line.dark = how == "away"
    house.truth.jobs.clear()
    house.clock.advance(100)

    assert text(house) == whole == b"hello\n"


class LongLogs(Line):
    """A line on which logs come to no end until they may."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.asked = 0
        self.is_long, self.is_over = asyncio.Event(), asyncio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/jobs/logs":
            self.asked += 1
            if self.asked >= AT_ONCE:
                self.is_long.set()
            await self.is_over.wait()
        return await super().handle_async_request(request)


class BreaksOff(Line):
    """A line that is cut in the middle of a log."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/jobs/logs":
            return httpx2.Response(200, stream=_Cut())
        return await super().handle_async_request(request)


class _Cut(httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"much more than there was before"
        raise httpx2.ReadError("the connection was reset")


def test_of_a_log_that_broke_off_nothing_is_kept(house: SkyHouse) -> None:
    whole = text(house)

    [source] = do(house.replica(BreaksOff(house.server)).logs("job-1"))

    assert source.size_bytes == len(whole)
    assert {file.name for file in house.folder.glob("logs/job-1/*")} == {
        "launch.json",
        "attempt-000001.log",
    }


def test_however_many_logs_are_read_jobs_can_be_looked_at(new_house: NewHouse) -> None:
    """They go through the same door, and some logs are long."""
    house = new_house(Nature(runs_s=100_000))
    keys = [f"job{number}-1" for number in range(12)]
    for key in keys:
        until_it_runs(house, key)
    line = LongLogs(house.server)
    launcher = house.replica(line)

    async def read_all_and_look() -> LaunchStatus:
        reading = [asyncio.create_task(launcher.logs(key)) for key in keys]
        await line.is_long.wait()
        seen = await launcher.look(keys[0])
        line.is_over.set()
        await asyncio.gather(*reading)
        return seen.standing

    assert do(read_all_and_look()) is LaunchStatus.UP


def test_discarded_log_is_not_copied_again(house: SkyHouse) -> None:
    house.server.prints = b"epoch 1\n"
    copied = text(house)
    kept = house.launcher.kept()

    house.launcher.discard("job-1")
    house.launcher.discard("job-1")
    house.clock.advance(10)

    assert (copied, kept) == (b"epoch 1\n", ["job-1"])
    assert text(house) == b""
    assert house.launcher.kept() == []
