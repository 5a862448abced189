"""The lookup of a launch's job at SkyPilot, including lost, duplicate and failed requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_skypilot import FaultyTransport, JobSimulation
from fake_skypilot.state import Failure
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.launch_admission import TokenState
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot.admission import LaunchGuarantee
from support.skypilot.launcher import NewSkyPilotHarness, SkyPilotHarness, do

FOR_LONG = JobSimulation(runs_s=100_000)


class RefusesLaunches(FaultyTransport):
    """A connection whose server rejects all launches."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/jobs/launch":
            return httpx2.Response(422, json={"detail": [{"msg": "field required"}]})
        return await super().handle_async_request(request)


def fails_with(
    harness: SkyPilotHarness, kind: str, message: str, *, calls_policy: bool = True
) -> None:
    """Let all launches of SkyPilot fail, after or before its policy is called."""

    def fail(body: dict[str, Any]) -> Iterator[float]:
        if calls_policy:
            harness.state.call_policy("jobs.launch", body["task"])
        yield from ()
        raise Failure(kind, message)

    harness.state.delay_s = 0
    harness.state.launch = fail  # type: ignore[method-assign]


def works_again(harness: SkyPilotHarness) -> None:
    del harness.state.launch  # type: ignore[method-assign]


def watch(harness: SkyPilotHarness, minutes: int) -> tuple[Observation | None, set[str]]:
    """Observe for some minutes; return the end, if any, and the errors in the meantime."""
    found = set()
    for _ in range(minutes * 4):
        try:
            seen = harness.look()
            if seen.status is LaunchStatus.ENDED:
                return seen, found
            if seen.status is LaunchStatus.ABSENT:
                harness.submit()
        except LauncherUnreachable as error:
            found.add(error.detail)
        harness.pass_time(15)
    return None, found


# Two replicas


@pytest.mark.parametrize("submitting_replica", [0, 1])
def test_job_of_an_older_token_is_not_matched_to_a_newer_one(
    new_harness: NewSkyPilotHarness, submitting_replica: int
) -> None:
    """One replica cancelled and sent the launch again; the other had listed the old job."""
    harness = new_harness(FOR_LONG)
    other = harness.replica()
    harness.state.delay_s = harness.state.upload_s = 0
    harness.state.fails_after_row = 1
    harness.submit()
    harness.pass_time(3)
    do(harness.launcher.sweep(lambda key: True))
    harness.pass_time(1)
    do(other.sweep(lambda key: True))
    harness.pass_time(1)
    harness.look()
    harness.pass_time(28.5)
    harness.state.fails_after_row, harness.state.delay_s = 0, 20
    assert harness.look().status is LaunchStatus.ABSENT
    do([harness.launcher, other][submitting_replica].submit(harness.launch()))

    sent = len(harness.posted("/jobs/launch"))
    early = do(other.observe("job-1"))
    for _ in range(10):
        do(other.sweep(lambda key: True))
        harness.pass_time(30)
    seen = do(other.observe("job-1"))

    first, second = harness.jobs()
    assert sent == 2
    assert early.status is LaunchStatus.WAITING
    assert first.status == "CANCELLED"
    assert (second.status, seen.status) == ("RUNNING", LaunchStatus.UP)


def test_launch_refused_by_one_replica_is_not_sent_by_another(
    new_harness: NewSkyPilotHarness, tmp_path: Path
) -> None:
    """The job has already ended as failed, so that its cluster would be an orphan."""
    harness = new_harness()
    with pytest.raises(LaunchRefused, match="not a directory"):
        harness.submit(workdir=str(tmp_path / "late"))
    (tmp_path / "late").mkdir()

    do(harness.replica().submit(harness.launch(workdir=str(tmp_path / "late"))))
    harness.pass_time(600)

    assert not harness.posted("/jobs/launch")
    row = harness.book.find("job-1")
    assert row
    assert (row.state, row.cancelled_at) == (TokenState.REVOKED, None)


def test_launch_already_sent_by_another_replica_is_found(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness(FOR_LONG)
    other = harness.replica()
    harness.state.delay_s = 0

    def no_wheel() -> Path:
        do(other.submit(harness.launch()))
        harness.pass_time(5)
        raise LaunchRefused("there is no wheel")

    harness.launcher._wheelhouse = no_wheel
    with pytest.raises(LauncherUnreachable, match="retrying"):
        harness.submit()

    assert harness.until(LaunchStatus.UP).placements == 1
    assert len(harness.jobs()) == 1


# Failures


@pytest.mark.parametrize("calls_policy", [True, False])
def test_server_credential_errors_are_retried_until_they_recover(
    new_harness: NewSkyPilotHarness, calls_policy: bool
) -> None:
    """A bucket responds with 403 for an hour, after or before the token was used."""
    harness = new_harness()
    fails_with(
        harness, "StorageBucketGetError", "Failed to access bucket: 403", calls_policy=calls_policy
    )
    harness.submit()
    harness.pass_time(1)

    ended, result = watch(harness, 60)
    works_again(harness)

    assert ended is None
    assert result == {"the launch request failed and will be retried: Failed to access bucket: 403"}
    assert harness.until(LaunchStatus.UP).placements == 1
    assert len(harness.posted("/jobs/launch")) <= 15


def test_launch_with_unexplained_failures_ends_after_five_tries(
    new_harness: NewSkyPilotHarness,
) -> None:
    """SkyPilot accepts each token, crashes, and has forgotten the request after its restart."""
    harness = new_harness()
    harness.state.delay_s = harness.state.upload_s = 0
    harness.state.fails_before_row = 1
    real = harness.state.run

    def forget(request: Any, work: Any, delay_s: float | None = None) -> None:
        request.is_known = request.name != "sky.jobs.launch"
        real(request, work, delay_s)

    harness.state.run = forget  # type: ignore[method-assign]
    harness.submit()

    ended, _ = watch(harness, 120)

    assert ended
    assert ended.result
    assert ended.result.outcome is Outcome.FAILED
    assert "its server no longer knows the request" in ended.result.detail
    assert len(harness.posted("/jobs/launch")) == 5


def test_task_rejection_reason_is_returned_on_every_observation(
    new_harness: NewSkyPilotHarness,
) -> None:
    """The database was unavailable when the end was to be recorded."""
    harness = new_harness()
    fails_with(
        harness, "ResourcesUnavailableError", "Catalog does not contain A100:4", calls_policy=False
    )
    harness.submit()
    harness.pass_time(1)

    found = [harness.look(), do(harness.replica().observe("job-1"))]

    assert [seen.result.outcome for seen in found if seen.result] == [Outcome.FAILED] * 2
    assert all("A100:4" in seen.result.detail for seen in found if seen.result)


def test_rejected_launch_is_failed_for_every_replica(
    new_harness: NewSkyPilotHarness,
) -> None:
    """The service was killed before it recorded the reason."""
    harness = new_harness()
    with pytest.raises(LaunchRefused, match="field required"):
        do(harness.replica(RefusesLaunches(harness.server)).submit(harness.launch()))

    ended, _ = watch(harness, 10)

    assert ended
    assert ended.result
    assert ended.result.outcome is Outcome.FAILED


# The launch guarantee


@pytest.fixture
def remove_plugin() -> Callable[[SkyPilotHarness], None]:
    """SkyPilot's configuration was changed without a restart: validations still call the policy."""

    def remove(harness: SkyPilotHarness) -> None:
        def policy(raw: bytes) -> tuple[int, str]:
            launches = b"jobs.launch" in raw
            return (200, '"{}"') if launches else harness.policy(raw)

        harness.state.policy = policy

    return remove


def test_unadmitted_launch_outweighs_the_probe(
    new_harness: NewSkyPilotHarness, remove_plugin: Callable[[SkyPilotHarness], None]
) -> None:
    harness = new_harness(FOR_LONG)
    before = do(harness.launcher.engine_info()).guarantee
    remove_plugin(harness)
    harness.until(LaunchStatus.UP)

    without = do(harness.launcher.engine_info()).guarantee
    harness.pass_time(3600)
    still = do(harness.launcher.engine_info()).guarantee
    harness.state.policy = harness.policy
    harness.until(LaunchStatus.UP, "other-1")

    assert before == LaunchGuarantee.EXACTLY_ONCE
    assert without == still == LaunchGuarantee.AT_MOST_60S_OVERLAP
    assert do(harness.launcher.engine_info()).guarantee == LaunchGuarantee.EXACTLY_ONCE


def test_plugin_installed_after_a_launch_is_trusted(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness(FOR_LONG, gated=False)
    harness.submit()
    harness.state.policy = harness.policy
    harness.launcher = harness.replica()
    assert do(harness.launcher.engine_info()).guarantee == LaunchGuarantee.EXACTLY_ONCE

    harness.until(LaunchStatus.UP)

    assert do(harness.launcher.engine_info()).guarantee == LaunchGuarantee.EXACTLY_ONCE
