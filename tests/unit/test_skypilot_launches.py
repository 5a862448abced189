"""Launches at SkyPilot, a story for each thing that goes wrong."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot.admission import LaunchGuarantee
from skyhouse import LosesReplies, NewHouse, SkyHouse, die_past_the_gate, do, submit_in_vain
from skystand import Nature
from skystand.truth import Failure, Request


def admitted(house: SkyHouse) -> list[str]:
    return [token for token in house.truth.admitted if token.startswith("hfl_job-1_")]


def test_a_launch_whose_caller_died_is_found_by_who_comes_after(new_house: NewHouse) -> None:
    """SkyPilot was asked, and the process was killed before it knew the number."""
    house = new_house()
    submit_in_vain(house)
    house.launcher = house.replica()

    seen = house.until(LaunchStatus.UP)

    assert seen.placements == 1
    assert len(house.jobs()) == len(admitted(house)) == 1


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
    new_house: NewHouse, instead: httpx2.Response | None
) -> None:
    house = new_house()
    submit_in_vain(house, instead)

    house.submit()  # At once, as a reconciler that looked and saw nothing would.
    house.until(LaunchStatus.UP)

    assert len(house.posted("/jobs/launch")) == 1
    assert len(house.jobs()) == 1


def test_a_launch_that_is_queued_for_long_is_waited_for(new_house: NewHouse) -> None:
    """For minutes it is in no listing, and SkyPilot is busy with hundreds of others."""
    house = new_house()
    house.truth.delay_s = 0
    submit_in_vain(house)
    [request] = [r for r in house.truth.requests.values() if r.name == "sky.jobs.launch"]
    work = request.work
    request.work = None
    for _ in range(300):
        house.truth.ask("sky.status", {}).status = "SUCCEEDED"
    house.pass_time(600)

    seen = house.look()
    house.submit()
    house.truth.run(request, work or iter(()), 1)
    house.until(LaunchStatus.UP)

    assert seen.standing is LaunchStatus.WAITING
    assert len(house.jobs()) == len(admitted(house)) == 1


def test_a_request_that_is_carried_out_twice_makes_one_job(new_house: NewHouse) -> None:
    """SkyPilot was killed in the middle of it, and begins again."""
    house = new_house()
    house.truth.delay_s = 0
    house.truth.upload_s = 30
    house.submit()
    house.pass_time(1)

    house.truth.kill("again")
    house.until(LaunchStatus.UP)

    assert len(house.jobs()) == 1
    assert len(set(admitted(house))) == len(admitted(house))


def test_a_launch_that_died_past_the_gate_is_asked_for_anew_after_proof(
    new_house: NewHouse,
) -> None:
    house = new_house()
    die_past_the_gate(house)

    soon = house.look()
    house.submit()
    early = len(house.posted("/jobs/launch"))
    house.until(LaunchStatus.UP)

    assert soon.standing is LaunchStatus.WAITING
    assert early == 1
    assert [token.split("_")[2] for token in admitted(house)] == ["1", "2"]
    assert len(house.jobs()) == 1


def test_an_admitted_request_of_which_nobody_knows_may_still_make_its_job(new_house: NewHouse) -> None:  # fmt: skip
    """The reply of the first POST was lost, the second was turned away, SkyPilot was killed, and its worker lives on."""
    house = new_house()
    house.truth.delay_s = 0
    house.truth.upload_s = 0
    submit_in_vain(house)
    [first] = [r for r in house.truth.requests.values() if r.name == "sky.jobs.launch"]
    work, first.work, first.is_known = house.truth.launch(first.body), None, False
    next(work)
    house.pass_time(61)
    house.submit()
    house.pass_time(1)
    second = house.look()
    house.truth.run(Request(0, "r", "sky.jobs.launch", {}, house.clock.now()), work, 30)
    house.pass_time(100)
    house.until(LaunchStatus.UP)

    assert second.standing is LaunchStatus.WAITING
    assert len(house.jobs()) == 1


def test_nothing_is_launched_while_the_gate_does_not_answer(new_house: NewHouse) -> None:
    house = new_house()
    house.gate_is_up = False
    with pytest.raises(LauncherUnreachable, match="does not let launches pass"):
        house.submit()
    house.gate_is_up = True
    assert do(house.launcher.vitals()).guarantee is LaunchGuarantee.EXACTLY_ONCE
    house.gate_is_up = False
    house.submit()
    house.pass_time(10)

    assert not house.jobs()
    house.gate_is_up = True
    house.until(LaunchStatus.UP)

    assert len(house.jobs()) == len(admitted(house)) == 1


@pytest.mark.parametrize("gated", [True, False])
def test_of_two_replicas_that_submit_at_once_one_asks(new_house: NewHouse, gated: bool) -> None:
    house = new_house(gated=gated)
    replicas = [house.replica(), house.replica()]

    async def everybody() -> None:
        await asyncio.gather(*(replica.vitals() for replica in replicas[:1]))
        await asyncio.gather(*(replica.submit(house.launch()) for replica in replicas), return_exceptions=True)  # fmt: skip

    do(everybody())
    house.until(LaunchStatus.UP)

    assert len(house.posted("/jobs/launch")) == 1
    assert len(house.jobs()) == 1


def test_a_replica_that_slept_for_long_asks_for_nothing_when_it_wakes(new_house: NewHouse) -> None:
    """It had decided to ask before it fell asleep."""
    house = new_house(gated=False)
    before = house.book.open("job-1", "job", house.clock.now())
    house.submit()
    house.pass_time(600)

    assert not house.book.posting(before, house.clock.now())
    do(house.launcher.cancel("job-1"))
    assert not house.book.posting(house.book.open("job-1", "job", house.clock.now()), house.clock.now())  # fmt: skip


def test_a_database_that_was_put_back_finds_the_job_that_it_does_not_know(
    new_house: NewHouse, tmp_path: Path
) -> None:
    """The row says that nobody was asked yet."""
    house = new_house(Nature(runs_s=100_000))
    house.book.open("job-1", "job", house.clock.now())
    engine = house.book._engine
    engine.dispose()
    shutil.copy(tmp_path / "holdfast.db", tmp_path / "old.db")
    house.until(LaunchStatus.UP)
    engine.dispose()
    for file in tmp_path.glob("holdfast.db-*"):
        file.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "holdfast.db")
    house.launcher = house.replica()

    seen = house.until(LaunchStatus.UP)

    assert seen.placements == 1
    assert len(house.jobs()) == len(house.posted("/jobs/launch")) == 1


@pytest.mark.parametrize("how", ["forgotten", "interrupted"])
def test_a_job_that_its_request_left_unbegun_is_cancelled_and_asked_for_anew(
    new_house: NewHouse, how: str
) -> None:
    """Seen live: a row PENDING and INACTIVE for ever, after a request that failed."""
    house = new_house()
    house.truth.delay_s = 0
    house.truth.upload_s = 10
    house.submit()
    while not house.jobs():
        house.pass_time(0.1)
    house.truth.rng.random = lambda: 0.9  # type: ignore[method-assign]
    house.truth.kill(how)

    seen = house.until(LaunchStatus.UP)

    first, second = house.jobs()
    assert (first.status, first.schedule) == ("CANCELLED", "INACTIVE")
    assert second.status == "RUNNING"
    assert seen.placements == 1


def test_without_a_gate_a_request_is_not_repeated_before_it_must_have_ended(
    new_house: NewHouse,
) -> None:
    house = new_house(gated=False)
    assert do(house.launcher.vitals()).guarantee is LaunchGuarantee.AT_MOST_60S_OVERLAP
    submit_in_vain(house)
    [request] = [r for r in house.truth.requests.values() if r.name == "sky.jobs.launch"]
    request.work, request.is_known = None, False
    posts = []
    for _ in range(40):
        if house.look().standing is LaunchStatus.ABSENT:
            house.submit()
        posts.append(len(house.posted("/jobs/launch")))
        house.pass_time(10)

    assert posts[:30] == [1] * 30
    assert posts[-1] == 2


def test_a_task_that_skypilot_never_takes_ends_the_launch(new_house: NewHouse) -> None:
    house = new_house()
    house.truth.delay_s = 0

    def refuse(body: dict[str, Any]) -> Any:
        yield from ()
        raise Failure("ResourcesUnavailableError", "Catalog does not contain A100:4")

    house.truth.launch = refuse  # type: ignore[method-assign]
    house.submit()
    house.pass_time(1)

    seen = house.look()

    assert seen.ending
    assert (seen.ending.outcome, seen.placements) == (Outcome.FAILED, 0)
    assert "Catalog does not contain A100:4" in seen.ending.detail


def test_an_outright_refusal_is_told_as_one(new_house: NewHouse) -> None:
    house = new_house()
    line = LosesReplies(house.server)
    line.instead = httpx2.Response(422, json={"detail": [{"msg": "field required"}]})

    with pytest.raises(LaunchRefused, match="field required"):
        do(house.replica(line).submit(house.launch()))


def test_a_replica_that_is_late_takes_a_job_that_never_began_for_no_end(
    new_house: NewHouse,
) -> None:
    """Seed 16: the other one had cancelled it and asked anew, and this one read CANCELLED and ended the job."""
    house = new_house()
    house.truth.delay_s = 0
    house.truth.upload_s = 0
    house.truth.fails_after_row = 1
    house.submit()
    house.pass_time(5)
    while not house.jobs()[0].is_over:
        house.look()
        house.pass_time(31)
    late = house.book.find("job-1")
    assert late
    house.truth.delay_s = 100
    assert house.look().standing is LaunchStatus.ABSENT
    house.submit()

    seen = do(house.replica()._see(late))

    assert seen.standing is LaunchStatus.WAITING
