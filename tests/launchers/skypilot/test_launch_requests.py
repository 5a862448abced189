"""Launches at SkyPilot, a story for each thing that goes wrong."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_skypilot import JobSimulation
from fake_skypilot.state import Failure, Request
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot.admission import LaunchGuarantee
from support.skypilot.launcher import (
    LosesReplies,
    NewSkyPilotHarness,
    SkyPilotHarness,
    do,
    fail_after_admission,
    submit_with_lost_reply,
)


def admitted(harness: SkyPilotHarness) -> list[str]:
    return [token for token in harness.truth.admitted if token.startswith("hfl_job-1_")]


def test_a_launch_whose_caller_died_is_found_by_who_comes_after(
    new_harness: NewSkyPilotHarness,
) -> None:
    """SkyPilot was asked, and the process was killed before it knew the number."""
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
def test_a_lost_reply_is_not_a_launch_that_failed(
    new_harness: NewSkyPilotHarness, instead: httpx2.Response | None
) -> None:
    harness = new_harness()
    submit_with_lost_reply(harness, instead)

    harness.submit()  # At once, as a reconciler that looked and saw nothing would.
    harness.until(LaunchStatus.UP)

    assert len(harness.posted("/jobs/launch")) == 1
    assert len(harness.jobs()) == 1


def test_a_launch_that_is_queued_for_long_is_waited_for(new_harness: NewSkyPilotHarness) -> None:
    """For minutes it is in no listing, and SkyPilot is busy with hundreds of others."""
    harness = new_harness()
    harness.truth.delay_s = 0
    submit_with_lost_reply(harness)
    [request] = [r for r in harness.truth.requests.values() if r.name == "sky.jobs.launch"]
    work = request.work
    request.work = None
    for _ in range(300):
        harness.truth.ask("sky.status", {}).status = "SUCCEEDED"
    harness.pass_time(600)

    seen = harness.look()
    harness.submit()
    harness.truth.run(request, work or iter(()), 1)
    harness.until(LaunchStatus.UP)

    assert seen.status is LaunchStatus.WAITING
    assert len(harness.jobs()) == len(admitted(harness)) == 1


def test_a_request_that_is_carried_out_twice_makes_one_job(new_harness: NewSkyPilotHarness) -> None:
    """SkyPilot was killed in the middle of it, and begins again."""
    harness = new_harness()
    harness.truth.delay_s = 0
    harness.truth.upload_s = 30
    harness.submit()
    harness.pass_time(1)

    harness.truth.kill("again")
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
    """The reply of the first POST was lost, the second was turned away, SkyPilot was killed, and its worker lives on."""
    harness = new_harness()
    harness.truth.delay_s = 0
    harness.truth.upload_s = 0
    submit_with_lost_reply(harness)
    [first] = [r for r in harness.truth.requests.values() if r.name == "sky.jobs.launch"]
    work, first.work, first.is_known = harness.truth.launch(first.body), None, False
    next(work)
    harness.pass_time(61)
    harness.submit()
    harness.pass_time(1)
    second = harness.look()
    harness.truth.run(Request(0, "r", "sky.jobs.launch", {}, harness.clock.now()), work, 30)
    harness.pass_time(100)
    harness.until(LaunchStatus.UP)

    assert second.status is LaunchStatus.WAITING
    assert len(harness.jobs()) == 1


def test_nothing_is_launched_while_the_gate_does_not_answer(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness()
    harness.gate_is_up = False
    with pytest.raises(LauncherUnreachable, match="refuses all launches"):
        harness.submit()
    harness.gate_is_up = True
    assert do(harness.launcher.engine_info()).guarantee is LaunchGuarantee.EXACTLY_ONCE
    harness.gate_is_up = False
    harness.submit()
    harness.pass_time(10)

    assert not harness.jobs()
    harness.gate_is_up = True
    harness.until(LaunchStatus.UP)

    assert len(harness.jobs()) == len(admitted(harness)) == 1


@pytest.mark.parametrize("gated", [True, False])
def test_of_two_replicas_that_submit_at_once_one_asks(
    new_harness: NewSkyPilotHarness, gated: bool
) -> None:
    harness = new_harness(gated=gated)
    replicas = [harness.replica(), harness.replica()]

    async def everybody() -> None:
        await asyncio.gather(*(replica.engine_info() for replica in replicas[:1]))
        await asyncio.gather(*(replica.submit(harness.launch()) for replica in replicas), return_exceptions=True)  # fmt: skip

    do(everybody())
    harness.until(LaunchStatus.UP)

    assert len(harness.posted("/jobs/launch")) == 1
    assert len(harness.jobs()) == 1


def test_replica_resuming_after_a_long_pause_sends_no_request(
    new_harness: NewSkyPilotHarness,
) -> None:
    """It had decided to ask before it fell asleep."""
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
    """Seen live: a row PENDING and INACTIVE for ever, after a request that failed."""
    harness = new_harness()
    harness.truth.delay_s = 0
    harness.truth.upload_s = 10
    harness.submit()
    while not harness.jobs():
        harness.pass_time(0.1)
    harness.truth.rng.random = lambda: 0.9  # type: ignore[method-assign]
    harness.truth.kill(how)

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
    [request] = [r for r in harness.truth.requests.values() if r.name == "sky.jobs.launch"]
    request.work, request.is_known = None, False
    posts = []
    for _ in range(40):
        if harness.look().status is LaunchStatus.ABSENT:
            harness.submit()
        posts.append(len(harness.posted("/jobs/launch")))
        harness.pass_time(10)

    assert posts[:30] == [1] * 30
    assert posts[-1] == 2


def test_a_task_that_skypilot_never_takes_ends_the_launch(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness()
    harness.truth.delay_s = 0

    def refuse(body: dict[str, Any]) -> Any:
        yield from ()
        raise Failure("ResourcesUnavailableError", "Catalog does not contain A100:4")

    harness.truth.launch = refuse  # type: ignore[method-assign]
    harness.submit()
    harness.pass_time(1)

    seen = harness.look()

    assert seen.result
    assert (seen.result.outcome, seen.placements) == (Outcome.FAILED, 0)
    assert "Catalog does not contain A100:4" in seen.result.detail


def test_rejected_request_raises_launch_refused(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness()
    line = LosesReplies(harness.server)
    line.instead = httpx2.Response(422, json={"detail": [{"msg": "field required"}]})

    with pytest.raises(LaunchRefused, match="field required"):
        do(harness.replica(line).submit(harness.launch()))


def test_stale_replica_does_not_end_a_launch_never_started(
    new_harness: NewSkyPilotHarness,
) -> None:
    """Seed 16: the other one had cancelled it and asked again, and this one read CANCELLED and ended the job."""
    harness = new_harness()
    harness.truth.delay_s = 0
    harness.truth.upload_s = 0
    harness.truth.fails_after_row = 1
    harness.submit()
    harness.pass_time(5)
    while not harness.jobs()[0].is_over:
        harness.look()
        harness.pass_time(31)
    late = harness.book.find("job-1")
    assert late
    harness.truth.delay_s = 100
    assert harness.look().status is LaunchStatus.ABSENT
    harness.submit()

    seen = do(harness.replica()._observe_job(late))

    assert seen.status is LaunchStatus.WAITING
