"""How a launch becomes a job of SkyPilot's, a story for each way in which it does not, or seems not to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.launch_admission import TokenState
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot.admission import LaunchGuarantee
from skyhouse import NewHouse, SkyHouse, do
from skystand import Line, Nature
from skystand.truth import Failure

FOR_LONG = Nature(runs_s=100_000)


class RefusesLaunches(Line):
    """A line at whose end no launch is taken."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/jobs/launch":
            return httpx2.Response(422, json={"detail": [{"msg": "field required"}]})
        return await super().handle_async_request(request)


def fails_with(house: SkyHouse, kind: str, words: str, *, asks: bool = True) -> None:
    """From now on SkyPilot fails at every launch, after it has asked its policy, or before."""

    def fail(body: dict[str, Any]) -> Iterator[float]:
        if asks:
            house.truth.petition("jobs.launch", body["task"])
        yield from ()
        raise Failure(kind, words)

    house.truth.delay_s = 0
    house.truth.launch = fail  # type: ignore[method-assign]


def works_again(house: SkyHouse) -> None:
    del house.truth.launch  # type: ignore[method-assign]


def watch(house: SkyHouse, minutes: int) -> tuple[Observation | None, set[str]]:
    """The end, if there is one within some minutes, and the troubles that were told meanwhile."""
    said = set()
    for _ in range(minutes * 4):
        try:
            seen = house.look()
            if seen.standing is LaunchStatus.ENDED:
                return seen, said
            if seen.standing is LaunchStatus.ABSENT:
                house.submit()
        except LauncherUnreachable as trouble:
            said.add(trouble.detail)
        house.pass_time(15)
    return None, said


# Of two replicas


@pytest.mark.parametrize("asks", [0, 1])
def test_a_job_of_an_older_token_is_not_taken_for_that_of_a_newer_one(
    new_house: NewHouse, asks: int
) -> None:
    """It was cancelled, and the launch asked for anew by either; the other replica had listed it a moment before."""
    house = new_house(FOR_LONG)
    other = house.replica()
    house.truth.delay_s = house.truth.upload_s = 0
    house.truth.fails_after_row = 1
    house.submit()
    house.pass_time(3)
    do(house.launcher.sweep(lambda key: True))
    house.pass_time(1)
    do(other.sweep(lambda key: True))
    house.pass_time(1)
    house.look()
    house.pass_time(28.5)
    house.truth.fails_after_row, house.truth.delay_s = 0, 20
    assert house.look().standing is LaunchStatus.ABSENT
    do([house.launcher, other][asks].submit(house.launch()))

    sent = len(house.posted("/jobs/launch"))
    early = do(other.look("job-1"))
    for _ in range(10):
        do(other.sweep(lambda key: True))
        house.pass_time(30)
    seen = do(other.look("job-1"))

    first, second = house.jobs()
    assert sent == 2
    assert early.standing is LaunchStatus.WAITING
    assert first.status == "CANCELLED"
    assert (second.status, seen.standing) == ("RUNNING", LaunchStatus.UP)


def test_what_one_replica_refuses_another_does_not_send_later(
    new_house: NewHouse, tmp_path: Path
) -> None:
    """The job has ended as failed by then, and its cluster would be nobody's."""
    house = new_house()
    with pytest.raises(LaunchRefused, match="not a folder"):
        house.submit(workdir=str(tmp_path / "late"))
    (tmp_path / "late").mkdir()

    do(house.replica().submit(house.launch(workdir=str(tmp_path / "late"))))
    house.pass_time(600)

    assert not house.posted("/jobs/launch")
    row = house.book.find("job-1")
    assert row
    assert (row.state, row.cancelled_at) == (TokenState.REVOKED, None)


def test_what_one_replica_refuses_and_another_has_sent_is_looked_for(new_house: NewHouse) -> None:
    house = new_house(FOR_LONG)
    other = house.replica()
    house.truth.delay_s = 0

    def no_wheel() -> Path:
        do(other.submit(house.launch()))
        house.pass_time(5)
        raise LaunchRefused("there is no wheel")

    house.launcher._wheelhouse = no_wheel
    with pytest.raises(LauncherUnreachable, match="looking again"):
        house.submit()

    assert house.until(LaunchStatus.UP).placements == 1
    assert len(house.jobs()) == 1


# Failures


@pytest.mark.parametrize("asks", [True, False])
def test_keys_of_the_server_that_do_not_work_are_trouble_and_no_end(
    new_house: NewHouse, asks: bool
) -> None:
    """A bucket answers 403 for an hour: as often as it is asked, and whether the token was used up or not."""
    house = new_house()
    fails_with(house, "StorageBucketGetError", "Failed to access bucket: 403", asks=asks)
    house.submit()
    house.pass_time(1)

    ended, said = watch(house, 60)
    works_again(house)

    assert ended is None
    assert said == {"SkyPilot is asked again in a while: Failed to access bucket: 403"}
    assert house.until(LaunchStatus.UP).placements == 1
    assert len(house.posted("/jobs/launch")) <= 15


def test_a_launch_is_not_asked_for_for_ever_though_nobody_says_why_it_fails(
    new_house: NewHouse,
) -> None:
    """SkyPilot takes each token, dies of it, and has forgotten the request when it is back."""
    house = new_house()
    house.truth.delay_s = house.truth.upload_s = 0
    house.truth.fails_before_row = 1
    real = house.truth.run

    def forget(request: Any, work: Any, delay_s: float | None = None) -> None:
        request.is_known = request.name != "sky.jobs.launch"
        real(request, work, delay_s)

    house.truth.run = forget  # type: ignore[method-assign]
    house.submit()

    ended, _ = watch(house, 120)

    assert ended
    assert ended.ending
    assert ended.ending.outcome is Outcome.FAILED
    assert "its server has forgotten the request" in ended.ending.detail
    assert len(house.posted("/jobs/launch")) == 5


def test_why_a_task_was_refused_is_told_until_it_is_written_down(new_house: NewHouse) -> None:
    """The database was away just when the end was to be recorded."""
    house = new_house()
    fails_with(house, "ResourcesUnavailableError", "Catalog does not contain A100:4", asks=False)
    house.submit()
    house.pass_time(1)

    told = [house.look(), do(house.replica().look("job-1"))]

    assert [seen.ending.outcome for seen in told if seen.ending] == [Outcome.FAILED] * 2
    assert all("A100:4" in seen.ending.detail for seen in told if seen.ending)


def test_what_was_refused_outright_has_failed_whoever_looks_next(new_house: NewHouse) -> None:
    """The service was killed before it could write down why."""
    house = new_house()
    with pytest.raises(LaunchRefused, match="field required"):
        do(house.replica(RefusesLaunches(house.server)).submit(house.launch()))

    ended, _ = watch(house, 10)

    assert ended
    assert ended.ending
    assert ended.ending.outcome is Outcome.FAILED


# The guarantee


@pytest.fixture
def takes_the_gate_away() -> Callable[[SkyHouse], None]:
    """SkyPilot's configuration was changed, and its server not started anew: validations still ask."""

    def take(house: SkyHouse) -> None:
        def policy(raw: bytes) -> tuple[int, str]:
            launches = b"jobs.launch" in raw
            return (200, '"{}"') if launches else house.policy(raw)

        house.truth.policy = policy

    return take


def test_a_launch_that_nobody_was_asked_about_is_believed_more_than_the_probe(
    new_house: NewHouse, takes_the_gate_away: Callable[[SkyHouse], None]
) -> None:
    house = new_house(FOR_LONG)
    before = do(house.launcher.vitals()).guarantee
    takes_the_gate_away(house)
    house.until(LaunchStatus.UP)

    without = do(house.launcher.vitals()).guarantee
    house.pass_time(3600)
    still = do(house.launcher.vitals()).guarantee
    house.truth.policy = house.policy
    house.until(LaunchStatus.UP, "other-1")

    assert before == LaunchGuarantee.EXACTLY_ONCE
    assert without == still == LaunchGuarantee.AT_MOST_60S_OVERLAP
    assert do(house.launcher.vitals()).guarantee == LaunchGuarantee.EXACTLY_ONCE


def test_a_gate_that_came_after_a_launch_is_not_in_doubt(new_house: NewHouse) -> None:
    house = new_house(FOR_LONG, gated=False)
    house.submit()
    house.truth.policy = house.policy
    house.launcher = house.replica()
    assert do(house.launcher.vitals()).guarantee == LaunchGuarantee.EXACTLY_ONCE

    house.until(LaunchStatus.UP)

    assert do(house.launcher.vitals()).guarantee == LaunchGuarantee.EXACTLY_ONCE
