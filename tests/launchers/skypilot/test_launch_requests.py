"""Launch requests at SkyPilot, and every failure between request and job."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from fake_skypilot import JobSimulation
from fake_skypilot.state import Failure, Request
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.launch_admission import Admission, TokenState
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot.admission import LaunchGuarantee
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.job_lookup import QUARANTINE
from holdfast.launchers.skypilot.launch_requests import LaunchRequests, RequestStatus, Unknown
from holdfast.launchers.skypilot.launcher import MAX_REQUESTED
from holdfast.launchers.skypilot.responses import ApiRequest
from support.events import at
from support.skypilot.launcher import (
    LosesReplies,
    NewSkyPilotHarness,
    SkyPilotHarness,
    do,
    fail_after_admission,
    submit_with_lost_reply,
)


def admitted(harness: SkyPilotHarness) -> list[str]:
    return [token for token in harness.state.admitted if token.startswith("hfl_job-1_")]


def test_launch_of_a_killed_process_is_found_by_its_successor(
    new_harness: NewSkyPilotHarness,
) -> None:
    """The process was killed after its request to SkyPilot and before it knew the number."""
    harness = new_harness()
    submit_with_lost_reply(harness)
    harness.launcher = harness.replica()

    seen = harness.until(LaunchStatus.UP)

    assert seen.placements == 1
    assert len(harness.jobs()) == len(admitted(harness)) == 1


@pytest.mark.parametrize(
    "instead",
    [
        None,
        httpx2.Response(502, text="Bad Gateway"),
        httpx2.Response(503, json={"detail": "shutting down"}),
        httpx2.Response(504, text="<html>"),
        httpx2.Response(200, content=b""),
    ],
)
def test_lost_response_is_no_failed_launch(
    new_harness: NewSkyPilotHarness, instead: httpx2.Response | None
) -> None:
    harness = new_harness()
    submit_with_lost_reply(harness, instead)

    harness.submit()  # At once, like a reconciler that observed nothing.
    harness.until(LaunchStatus.UP)

    assert len(harness.posted("/jobs/launch")) == 1
    assert len(harness.jobs()) == 1


def test_long_queued_launch_is_awaited(new_harness: NewSkyPilotHarness) -> None:
    """The job is in no listing for minutes, since SkyPilot is busy with hundreds of others."""
    harness = new_harness()
    harness.state.delay_s = 0
    submit_with_lost_reply(harness)
    [request] = [r for r in harness.state.requests.values() if r.name == "sky.jobs.launch"]
    work = request.work
    request.work = None
    for _ in range(300):
        harness.state.ask("sky.status", {}).status = "SUCCEEDED"
    harness.pass_time(600)

    seen = harness.look()
    harness.submit()
    harness.state.run(request, work or iter(()), 1)
    harness.until(LaunchStatus.UP)

    assert seen.status is LaunchStatus.WAITING
    assert len(harness.jobs()) == len(admitted(harness)) == 1


def test_request_executed_twice_creates_one_job(new_harness: NewSkyPilotHarness) -> None:
    """SkyPilot was killed during the request, and repeats it."""
    harness = new_harness()
    harness.state.delay_s = 0
    harness.state.upload_s = 30
    harness.submit()
    harness.pass_time(1)

    harness.state.kill("again")
    harness.until(LaunchStatus.UP)

    assert len(harness.jobs()) == 1
    assert len(set(admitted(harness))) == len(admitted(harness))


def test_launch_failed_after_admission_is_retried_with_new_token(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness()
    fail_after_admission(harness)

    soon = harness.look()
    harness.submit()
    early = len(harness.posted("/jobs/launch"))
    harness.until(LaunchStatus.UP)

    assert soon.status is LaunchStatus.WAITING
    assert early == 1
    assert [token.split("_")[2] for token in admitted(harness)] == ["1", "2"]
    assert len(harness.jobs()) == 1


def test_unknown_admitted_request_may_still_create_the_job(new_harness: NewSkyPilotHarness) -> None:  # fmt: skip
    """The first response was lost, the second POST rejected; SkyPilot's worker survives a kill."""
    harness = new_harness()
    harness.state.delay_s = 0
    harness.state.upload_s = 0
    submit_with_lost_reply(harness)
    [first] = [r for r in harness.state.requests.values() if r.name == "sky.jobs.launch"]
    work, first.work, first.is_known = harness.state.launch(first.body), None, False
    next(work)
    harness.pass_time(61)
    harness.submit()
    harness.pass_time(1)
    second = harness.look()
    harness.state.run(Request(0, "r", "sky.jobs.launch", {}, harness.clock.now()), work, 30)
    harness.pass_time(100)
    harness.until(LaunchStatus.UP)

    assert second.status is LaunchStatus.WAITING
    assert len(harness.jobs()) == 1


def test_no_launch_is_sent_while_admission_is_unavailable(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness()
    harness.admission_is_up = False
    with pytest.raises(LauncherUnreachable, match="refuses all launches"):
        harness.submit()
    harness.admission_is_up = True
    assert do(harness.launcher.engine_info()).guarantee is LaunchGuarantee.EXACTLY_ONCE
    harness.admission_is_up = False
    harness.submit()
    harness.pass_time(10)

    assert not harness.jobs()
    harness.admission_is_up = True
    harness.until(LaunchStatus.UP)

    assert len(harness.jobs()) == len(admitted(harness)) == 1


@pytest.mark.parametrize("gated", [True, False])
def test_of_two_concurrent_submits_one_sends_a_request(
    new_harness: NewSkyPilotHarness, gated: bool
) -> None:
    harness = new_harness(gated=gated)
    replicas = [harness.replica(), harness.replica()]

    async def submit_all() -> None:
        await asyncio.gather(*(replica.engine_info() for replica in replicas[:1]))
        await asyncio.gather(*(replica.submit(harness.launch()) for replica in replicas), return_exceptions=True)  # fmt: skip

    do(submit_all())
    harness.until(LaunchStatus.UP)

    assert len(harness.posted("/jobs/launch")) == 1
    assert len(harness.jobs()) == 1


def test_replica_resuming_after_a_long_pause_sends_no_request(
    new_harness: NewSkyPilotHarness,
) -> None:
    """The replica had decided to send the request before it was paused."""
    harness = new_harness(gated=False)
    before = harness.book.open("job-1", "job", harness.clock.now())
    harness.submit()
    harness.pass_time(600)

    assert not harness.book.mark_posting(before, harness.clock.now())
    do(harness.launcher.cancel("job-1"))
    assert not harness.book.mark_posting(harness.book.open("job-1", "job", harness.clock.now()), harness.clock.now())  # fmt: skip


def test_restored_database_finds_the_running_job(
    new_harness: NewSkyPilotHarness, tmp_path: Path
) -> None:
    """The row states that no request was sent yet."""
    harness = new_harness(JobSimulation(runs_s=100_000))
    harness.book.open("job-1", "job", harness.clock.now())
    engine = harness.book._engine
    engine.dispose()
    shutil.copy(tmp_path / "holdfast.db", tmp_path / "old.db")
    harness.until(LaunchStatus.UP)
    engine.dispose()
    for file in tmp_path.glob("holdfast.db-*"):
        file.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "holdfast.db")
    harness.launcher = harness.replica()

    seen = harness.until(LaunchStatus.UP)

    assert seen.placements == 1
    assert len(harness.jobs()) == len(harness.posted("/jobs/launch")) == 1


@pytest.mark.parametrize("how", ["forgotten", "interrupted"])
def test_job_never_started_by_its_request_is_relaunched(
    new_harness: NewSkyPilotHarness, how: str
) -> None:
    """Observed in practice: a row stays PENDING and INACTIVE after a failed request."""
    harness = new_harness()
    harness.state.delay_s = 0
    harness.state.upload_s = 10
    harness.submit()
    while not harness.jobs():
        harness.pass_time(0.1)
    harness.state.rng.random = lambda: 0.9  # type: ignore[method-assign]
    harness.state.kill(how)

    seen = harness.until(LaunchStatus.UP)

    first, second = harness.jobs()
    assert (first.status, first.schedule) == ("CANCELLED", "INACTIVE")
    assert second.status == "RUNNING"
    assert seen.placements == 1


def test_without_plugin_a_lost_request_is_retried_after_timeout(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness(gated=False)
    assert do(harness.launcher.engine_info()).guarantee is LaunchGuarantee.AT_MOST_60S_OVERLAP
    submit_with_lost_reply(harness)
    [request] = [r for r in harness.state.requests.values() if r.name == "sky.jobs.launch"]
    request.work, request.is_known = None, False
    posts = []
    for _ in range(40):
        if harness.look().status is LaunchStatus.ABSENT:
            harness.submit()
        posts.append(len(harness.posted("/jobs/launch")))
        harness.pass_time(10)

    assert posts[:30] == [1] * 30
    assert posts[-1] == 2


def test_task_always_rejected_ends_the_launch(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness()
    harness.state.delay_s = 0

    def refuse(body: dict[str, Any]) -> Any:
        yield from ()
        raise Failure("ResourcesUnavailableError", "Catalog does not contain A100:4")

    harness.state.launch = refuse  # type: ignore[method-assign]
    harness.submit()
    harness.pass_time(1)

    seen = harness.look()

    assert seen.result
    assert (seen.result.outcome, seen.placements) == (Outcome.FAILED, 0)
    assert "Catalog does not contain A100:4" in seen.result.detail


def test_rejected_request_raises_launch_refused(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness()
    transport = LosesReplies(harness.server)
    transport.instead = httpx2.Response(422, json={"detail": [{"msg": "field required"}]})

    with pytest.raises(LaunchRefused, match="field required"):
        do(harness.replica(transport).submit(harness.launch()))


def test_stale_replica_does_not_end_a_launch_never_started(
    new_harness: NewSkyPilotHarness,
) -> None:
    """Regression: the other replica had cancelled and sent it again; this one read CANCELLED."""
    harness = new_harness()
    harness.state.delay_s = 0
    harness.state.upload_s = 0
    harness.state.fails_after_row = 1
    harness.submit()
    harness.pass_time(5)
    while not harness.jobs()[0].is_over:
        harness.look()
        harness.pass_time(31)
    late = harness.book.find("job-1")
    assert late
    harness.state.delay_s = 100
    assert harness.look().status is LaunchStatus.ABSENT
    harness.submit()

    seen = do(harness.replica()._observe_job(late)).observation

    assert seen.status is LaunchStatus.WAITING


class _SlowLists:
    """An API server without requests, which answers once that is allowed."""

    def __init__(self) -> None:
        self.lists = 0
        self.may_answer = asyncio.Event()

    async def list_pending(self) -> list[ApiRequest]:
        self.lists += 1
        await self.may_answer.wait()
        return []

    list_recent = list_pending


def test_launches_that_wait_for_a_list_share_it() -> None:
    server = _SlowLists()
    rows = [
        Admission(
            key=f"job-{n}",
            job_id=f"job-{n}",
            generation=1,
            state=TokenState.ISSUED,
            state_at=at(0),
            posted_at=at(0),
        )
        for n in range(100)
    ]

    async def look() -> list[RequestStatus]:
        requests = LaunchRequests(cast("SkyPilotClient", server))
        calls = [asyncio.create_task(requests.status(rows[0], "job-0"))]
        await asyncio.sleep(0)
        # The list under way may lack what these ask for, so that they share the next one.
        calls += [asyncio.create_task(requests.status(row, row.key)) for row in rows[1:]]
        await asyncio.sleep(0)
        server.may_answer.set()
        return await asyncio.gather(*calls)

    seen = asyncio.run(look())

    assert seen == [Unknown()] * 100
    assert server.lists == 4


def test_launches_beyond_the_limit_wait_for_earlier_requests(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness()
    keys = [f"job-{n}" for n in range(MAX_REQUESTED + 4)]

    for key in keys:
        harness.submit(key)
    at_first = len(harness.posted("/jobs/launch"))
    harness.pass_time(60)
    waiting = [harness.look(key).status for key in keys[MAX_REQUESTED:]]
    for key in keys:
        harness.look(key)
        harness.submit(key)

    assert at_first == MAX_REQUESTED
    assert waiting == [LaunchStatus.ABSENT] * 4
    assert len(harness.posted("/jobs/launch")) == len(keys)


def test_requests_without_a_job_do_not_block_others_for_long(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness()
    line = LosesReplies(harness.server)
    for n in range(MAX_REQUESTED):
        with pytest.raises(LauncherUnreachable):
            do(harness.replica(line).submit(harness.launch(f"job-{n}")))

    harness.submit("job-100")
    at_first = len(harness.jobs("job-100"))
    harness.pass_time(QUARANTINE.total_seconds() + 1)
    harness.submit("job-100")
    harness.pass_time(10)

    assert at_first == 0
    assert len(harness.jobs("job-100")) == 1


def test_cancelled_launches_make_room_for_others(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness()
    for n in range(MAX_REQUESTED):
        harness.submit(f"job-{n}")
    do(harness.launcher.cancel("job-0"))

    harness.submit("job-100")

    assert len(harness.posted("/jobs/launch")) == MAX_REQUESTED + 1
