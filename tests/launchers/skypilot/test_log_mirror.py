"""Logs of SkyPilot's jobs: copied while their nodes run, and readable after them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx2
import pytest
from fake_skypilot import FaultyTransport, JobSimulation, Server
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.log_mirror import MAX_CONCURRENT
from support.skypilot.launcher import NewSkyPilotHarness, SkyPilotHarness, do


def start_job(harness: SkyPilotHarness, key: str = "job-1") -> None:
    harness.until(LaunchStatus.UP, key)
    while harness.jobs(key)[0].status != "RUNNING":
        harness.pass_time(5)
    harness.look(key)


@pytest.fixture
def harness(new_harness: NewSkyPilotHarness) -> SkyPilotHarness:
    """A harness whose job is up and stays up."""
    harness = new_harness(JobSimulation(runs_s=100_000))
    assert list(do(harness.launcher.logs("job-1"))) == []
    start_job(harness)
    return harness


def text(harness: SkyPilotHarness) -> bytes:
    """All logs of the job, concatenated."""
    sources = do(harness.launcher.logs("job-1"))
    return b"".join(harness.launcher.read_log("job-1", item, 0, 1000) for item in sources)


def test_log_is_read_from_an_offset(harness: SkyPilotHarness) -> None:
    harness.server.prints = b"epoch 1\n"

    [source] = do(harness.launcher.logs("job-1"))

    assert (source.attempt, source.node, source.rank, source.size_bytes) == (1, 0, None, 8)
    assert harness.launcher.read_log("job-1", source, 2, 3) == b"och"
    assert harness.launcher.read_log("job-1", source, 100, 3) == b""


def test_display_lines_of_skypilot_are_not_in_a_log(harness: SkyPilotHarness) -> None:
    alive = b'<sky-payload>"<heartbeat></heartbeat>"</sky-payload>\n'
    harness.server.prints = b"epoch 1" + alive + b"\n<sky-payload>7</sky-payload>\n"

    assert text(harness) == b"epoch 1\n<sky-payload>7</sky-payload>\n"


def test_mirrored_log_is_kept_when_server_returns_nothing(harness: SkyPilotHarness) -> None:
    harness.server.prints = b"epoch 1\n"
    whole = text(harness)

    harness.clock.advance(10)
    harness.server.prints = b""

    assert text(harness) == whole == b"epoch 1\n"


def test_log_is_mirrored_without_readers(harness: SkyPilotHarness) -> None:
    """Users need the last output before the nodes were lost."""
    harness.server.prints = b"epoch 1\n"
    do(harness.launcher.copy_logs("job-1"))
    harness.clock.advance(10)
    harness.server.prints += b"CUDA error\n"
    do(harness.launcher.copy_logs("job-1"))
    harness.state.release_nodes(harness.jobs()[0])
    harness.line.dark = True

    assert text(harness) == b"epoch 1\nCUDA error\n"


def test_copied_log_requests_only_the_newest_lines(harness: SkyPilotHarness) -> None:
    lines = [b"step %d\n" % n for n in range(5000)]
    copied = []
    for count in (3000, 3001, 4500, 5000):
        harness.clock.advance(10)
        harness.server.prints = b"".join(lines[:count])
        [source] = do(harness.launcher.logs("job-1"))
        copied.append(harness.launcher.read_log("job-1", source, 0, 1_000_000))

    assert copied == [b"".join(lines[:count]) for count in (3000, 3001, 4500, 5000)]
    assert [body["tail"] for body in harness.posted("/jobs/logs")] == [None, 2000, 2000, 2000]


def test_log_tail_without_overlap_replaces_the_copy(harness: SkyPilotHarness) -> None:
    harness.server.prints = first = b"".join(b"step %d\n" % n for n in range(100))
    do(harness.launcher.copy_logs("job-1"))
    harness.clock.advance(10)
    harness.server.prints = whole = first + b"".join(b"more %d\n" % n for n in range(2500))

    [source] = do(harness.launcher.logs("job-1"))

    assert harness.launcher.read_log("job-1", source, 0, 1_000_000) == whole


def test_log_is_not_requested_before_the_job_runs(new_harness: NewSkyPilotHarness) -> None:
    """SkyPilot would respond only once the job runs."""
    harness = new_harness(JobSimulation(setup_s=3600))
    harness.until(LaunchStatus.UP)

    do(harness.launcher.copy_logs("job-1"))

    assert not harness.posted("/jobs/logs")


def test_log_of_an_unlisted_job_number_is_not_read(harness: SkyPilotHarness) -> None:
    harness.state.lose_everything()
    harness.pass_time(31)
    with pytest.raises(LauncherUnreachable):
        harness.look()

    do(harness.launcher.copy_logs("job-1"))

    assert not harness.posted("/jobs/logs")


def test_every_placement_has_a_separate_log(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness(JobSimulation(runs_s=100_000, mtbf_s=300), seed=3)
    for placement in (1, 2):
        while harness.until(LaunchStatus.UP).placements < placement:
            harness.pass_time(5)
        harness.server.prints = b"on nodes %d\n" % placement
        do(harness.launcher.logs("job-1"))

    sources = do(harness.launcher.logs("job-1"))

    assert [source.attempt for source in sources] == [1, 2]
    assert text(harness) == b"on nodes 1\non nodes 2\n"


def test_concurrent_log_followers_share_rate_limited_requests(
    harness: SkyPilotHarness,
) -> None:
    """Two readers poll four times a second for ten seconds."""
    before = len(harness.server.posts)

    for _ in range(40):
        do(harness.launcher.logs("job-1"))
        do(harness.launcher.logs("job-1"))
        harness.clock.advance(0.25)

    assert Counter(path for path, _ in harness.server.posts[before:]) == {
        "/jobs/events": 4,
        "/jobs/logs": 4,
    }


def test_reader_during_log_copy_gets_the_existing_bytes(harness: SkyPilotHarness) -> None:
    harness.server.prints = b"epoch 1\n"
    do(harness.launcher.logs("job-1"))
    harness.clock.advance(10)

    async def read_while_it_is_copied() -> int:
        answered = asyncio.Event()

        async def until_answered() -> None:
            await answered.wait()

        harness.line.wait = until_answered
        copying = asyncio.create_task(harness.launcher.logs("job-1"))
        await asyncio.sleep(0)
        [source] = await harness.launcher.logs("job-1")
        answered.set()
        await copying
        return source.size_bytes

    assert do(read_while_it_is_copied()) == 8


def test_reading_a_log_does_not_change_the_launch(new_harness: NewSkyPilotHarness) -> None:
    """The request failed after its job was created: an observation cancels and resubmits it."""
    harness = new_harness()
    harness.state.delay_s = 0
    harness.state.upload_s = 1000
    harness.submit()
    while not harness.jobs():
        harness.pass_time(1)
    harness.pass_time(31)
    harness.look()
    harness.state.kill("interrupted")
    row, recorded = harness.book.find("job-1"), harness.book.events("job-1")

    for _ in range(3):
        do(harness.launcher.logs("job-1"))
        harness.pass_time(60)

    assert not harness.posted("/jobs/cancel")
    assert (harness.book.find("job-1"), harness.book.events("job-1")) == (row, recorded)
    harness.look()
    assert harness.posted("/jobs/cancel")


@pytest.mark.parametrize("how", ["unreachable", "forgetful"])
def test_log_copy_is_readable_without_skypilot(harness: SkyPilotHarness, how: str) -> None:
    whole = text(harness)
    harness.line.dark = how == "unreachable"
    harness.state.jobs.clear()
    harness.clock.advance(100)

    assert text(harness) == whole == b"hello\n"


class LongLogTransport(FaultyTransport):
    """A transport on which logs do not end until they may."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.asked = 0
        self.is_long, self.is_over = asyncio.Event(), asyncio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/jobs/logs":
            self.asked += 1
            if self.asked >= MAX_CONCURRENT:
                self.is_long.set()
            await self.is_over.wait()
        return await super().handle_async_request(request)


class DisconnectingTransport(FaultyTransport):
    """A transport that disconnects in the middle of a log."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/jobs/logs":
            return httpx2.Response(200, stream=_Cut())
        return await super().handle_async_request(request)


class _Cut(httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"much more than there was before"
        raise httpx2.ReadError("the connection was reset")


def test_interrupted_log_download_is_discarded(harness: SkyPilotHarness) -> None:
    whole = text(harness)

    [source] = do(harness.replica(DisconnectingTransport(harness.server)).logs("job-1"))

    assert source.size_bytes == len(whole)
    assert {file.name for file in harness.folder.glob("logs/job-1/*")} == {
        "launch.json",
        "attempt-000001.log",
    }


def test_many_log_downloads_do_not_block_observations(new_harness: NewSkyPilotHarness) -> None:
    """Logs and observations share a connection limit, and some logs are long."""
    harness = new_harness(JobSimulation(runs_s=100_000))
    keys = [f"job{number}-1" for number in range(12)]
    for key in keys:
        start_job(harness, key)
    transport = LongLogTransport(harness.server)
    launcher = harness.replica(transport)

    async def read_logs_and_observe() -> LaunchStatus:
        reading = [asyncio.create_task(launcher.logs(key)) for key in keys]
        await transport.is_long.wait()
        seen = await launcher.observe(keys[0])
        transport.is_over.set()
        await asyncio.gather(*reading)
        return seen.status

    assert do(read_logs_and_observe()) is LaunchStatus.UP


def test_discarded_log_is_not_copied_again(harness: SkyPilotHarness) -> None:
    harness.server.prints = b"epoch 1\n"
    copied = text(harness)
    kept = harness.launcher.keys_with_files()

    harness.launcher.discard("job-1")
    harness.launcher.discard("job-1")
    harness.clock.advance(10)

    assert (copied, kept) == (b"epoch 1\n", ["job-1"])
    assert text(harness) == b""
    assert harness.launcher.keys_with_files() == []
