"""Cancellation at SkyPilot: lost and late cancellations, forgotten jobs and duplicates."""

from __future__ import annotations

import pytest
from fake_skypilot import JobSimulation
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.launch_admission import TokenState
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable
from support.skypilot.launcher import (
    NAMES,
    NewSkyPilotHarness,
    do,
    fail_after_admission,
    submit_with_lost_reply,
)


def test_job_missing_in_one_listing_is_not_lost(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness()
    harness.until(LaunchStatus.UP)
    harness.server.old_queue = []

    for _ in range(3):
        with pytest.raises(LauncherUnreachable, match="checking again"):
            do(harness.replica().observe("job-1"))
        harness.pass_time(15)
    harness.server.old_queue = None

    assert do(harness.replica().observe("job-1")).status is LaunchStatus.UP
    row = harness.book.find("job-1")
    assert row
    assert row.missing_since is None


def test_machines_are_placed_and_priced_before_the_job_runs(
    new_harness: NewSkyPilotHarness,
) -> None:
    """SkyPilot may take long to set up machines, or fail to; they cost money in any case."""
    harness = new_harness(JobSimulation(setup_s=3600))
    placed = harness.until(LaunchStatus.UP).recent_placements[0]
    [job] = harness.jobs()
    status = job.status
    do(harness.launcher.cancel("job-1"))
    ended = harness.until(LaunchStatus.ENDED)

    assert status == "STARTING"
    assert placed.zone.count("/") == 2, "cloud, region and zone"
    assert placed.micros_per_hour > 0
    assert not placed.is_price_estimate
    assert [p.ready_at for p in ended.recent_placements] == [placed.ready_at]


def test_job_missing_from_skypilot_becomes_forgotten(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness(JobSimulation(runs_s=100_000))
    harness.until(LaunchStatus.UP)
    harness.state.release_nodes(harness.jobs()[0])
    harness.state.jobs.clear()
    since = harness.clock.now()

    seen = harness.until(LaunchStatus.FORGOTTEN)

    assert seen.placements == 0
    assert (harness.clock.now() - since).total_seconds() <= 120


def test_number_reused_by_another_job_is_not_ours(new_harness: NewSkyPilotHarness) -> None:
    harness = new_harness(JobSimulation(runs_s=100_000))
    harness.until(LaunchStatus.UP)
    [job] = harness.jobs()
    job.name = "somebody-elses"

    harness.until(LaunchStatus.FORGOTTEN)
    do(harness.launcher.sweep(lambda key: False))

    assert not harness.posted("/jobs/cancel")


def test_cancel_during_recovery_ends_with_the_job(new_harness: NewSkyPilotHarness) -> None:
    """SkyPilot sets a job in back-off to CANCELLED at once, and continues to place it."""
    harness = new_harness(JobSimulation(denial_rate=1, backoff_s=100_000))
    harness.until(LaunchStatus.WAITING)
    while not (harness.jobs() and harness.jobs()[0].status == "PENDING" and harness.jobs()[0].schedule != "INACTIVE"):  # fmt: skip
        harness.pass_time(5)
        harness.look()
    [job] = harness.jobs()

    do(harness.launcher.cancel("job-1"))
    harness.state.catch_up()
    while not any(event["new_status"] == "CANCELLED" for event in job.events):
        harness.pass_time(0.01)
    early = harness.look()
    still = job.is_over
    ended = harness.until(LaunchStatus.ENDED)

    assert not still
    assert early.status is LaunchStatus.WAITING
    assert job.is_over
    assert ended.result
    assert ended.result.outcome is Outcome.CANCELLED


def test_cancel_lost_by_skypilot_is_repeated(
    new_harness: NewSkyPilotHarness,
) -> None:
    """SkyPilot reports success for every cancel request, whether it takes effect or not."""
    harness = new_harness(JobSimulation(runs_s=100_000))
    harness.until(LaunchStatus.UP)
    real, harness.state.cancel = harness.state.cancel, lambda numbers: iter(())  # type: ignore[method-assign]
    for _ in range(10):
        do(harness.launcher.cancel("job-1"))
        harness.pass_time(10)
    ignored = harness.look()
    harness.state.cancel = real  # type: ignore[method-assign]

    for _ in range(10):
        do(harness.launcher.cancel("job-1"))
        harness.pass_time(10)

    assert ignored.status is LaunchStatus.UP
    assert 3 <= len(harness.posted("/jobs/cancel")) <= 8
    assert all(body["job_ids"] == [1] and "name" not in body for body in harness.posted("/jobs/cancel"))  # fmt: skip
    assert harness.look().status is LaunchStatus.ENDED


def test_job_preempted_during_cancel_stays_cancelled(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness(JobSimulation(mtbf_s=30, runs_s=100_000))
    harness.until(LaunchStatus.UP)
    do(harness.launcher.cancel("job-1"))
    harness.state.release_nodes(harness.jobs()[0])

    ended = harness.until(LaunchStatus.ENDED)
    harness.submit()
    harness.pass_time(600)

    assert ended.result
    assert ended.result.outcome is Outcome.CANCELLED
    assert len(harness.jobs()) == 1
    assert harness.jobs()[0].is_over


@pytest.mark.parametrize("wait_s", [0, 0.5, 3, 20])
@pytest.mark.parametrize("gated", [True, False])
def test_cancel_during_the_launch_request_wins(
    new_harness: NewSkyPilotHarness, wait_s: float, gated: bool
) -> None:
    """The request is rejected, or its job is cancelled."""
    harness = new_harness(gated=gated)
    harness.state.delay_s = 10
    submit_with_lost_reply(harness)
    harness.pass_time(wait_s)

    for _ in range(100):
        try:
            do(harness.launcher.cancel("job-1"))
            seen = harness.look()
        except LauncherUnreachable:
            continue
        if seen.status is LaunchStatus.ENDED:
            break
        harness.pass_time(10)
    harness.submit()
    harness.pass_time(1000)

    assert seen.result
    assert seen.result.outcome is Outcome.CANCELLED
    assert not harness.state.live(NAMES.job_name("job-1"))
    row = harness.book.find("job-1")
    assert row
    assert row.state is not TokenState.ISSUED


def test_cancelled_launch_failed_after_admission_is_not_retried(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness()
    fail_after_admission(harness)
    do(harness.launcher.cancel("job-1"))

    ended = harness.until(LaunchStatus.ENDED)
    harness.submit()

    assert ended.result
    assert ended.result.outcome is Outcome.CANCELLED
    assert len(harness.posted("/jobs/launch")) == 1


def test_duplicate_without_admission_is_cancelled_in_a_minute(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness(JobSimulation(runs_s=100_000), gated=False)
    harness.until(LaunchStatus.UP)
    request = harness.state.ask("sky.jobs.launch", harness.posted("/jobs/launch")[0])
    harness.state.run(request, harness.state.launch(request.body), 0)
    harness.pass_time(20)
    assert len(harness.state.live(NAMES.job_name("job-1"))) == 2
    since = harness.clock.now()

    while len(harness.state.live(NAMES.job_name("job-1"))) > 1:
        do(harness.launcher.sweep(lambda key: True))
        harness.pass_time(15)

    assert (harness.clock.now() - since).total_seconds() <= 60
    assert [body["job_ids"] for body in harness.posted("/jobs/cancel")] == [[2]] * len(harness.posted("/jobs/cancel"))  # fmt: skip
    assert harness.look().status is LaunchStatus.UP


def test_replicas_with_stale_listings_never_lose_placements(
    new_harness: NewSkyPilotHarness,
) -> None:
    """Regression: a replica with a listing from before the nodes came up undid their record."""
    harness = new_harness(JobSimulation(mtbf_s=120, runs_s=1200, losses=("preempted",)), seed=5)
    harness.until(LaunchStatus.WAITING)
    replicas = [harness.replica(), harness.replica()]
    placements = 0
    for turn in range(1200):
        seen = do(replicas[turn % 2].observe("job-1"))
        assert seen.placements >= placements
        placements = seen.placements
        if seen.status is LaunchStatus.ENDED:
            break
        harness.pass_time(2.5)

    assert seen.result
    assert [placed.cause for placed in seen.recent_placements[:-1]] == [Cause.NODE_FAILED] * (
        placements - 1
    )
    assert placements == len(harness.jobs()[0].losses) + 1 > 3
