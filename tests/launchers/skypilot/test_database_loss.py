"""A SkyPilot with a new database: jobs of the old one are neither doubled nor ignored."""

from __future__ import annotations

import pytest
from fake_skypilot import JobSimulation
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable
from support.skypilot.launcher import NAMES, NewSkyPilotHarness, SkyPilotHarness, do

FOR_LONG = JobSimulation(runs_s=100_000)
REMEDY = "terminate it in the cloud's console, then cancel the job, or pause and resume it"


def start_job(
    new_harness: NewSkyPilotHarness,
    simulation: JobSimulation = FOR_LONG,
    at: LaunchStatus = LaunchStatus.UP,
) -> SkyPilotHarness:
    harness = new_harness(simulation)
    harness.until(at)
    return harness


def lose_everything(harness: SkyPilotHarness) -> Observation:
    """The observation of a job once listings agree that SkyPilot has lost it with all others."""
    harness.state.lose_everything()
    harness.pass_time(31)
    with pytest.raises(LauncherUnreachable, match="checking again"):
        harness.look()
    harness.pass_time(61)
    return harness.look()


def test_lost_machines_are_listed_and_their_job_is_held(new_harness: NewSkyPilotHarness) -> None:
    harness = start_job(new_harness)

    seen = lose_everything(harness)
    again = do(harness.replica().observe("job-1"))

    [left] = seen.leftovers
    assert (seen.status, again.status) == (LaunchStatus.UNKNOWN, LaunchStatus.UNKNOWN)
    assert left.startswith(f"SkyPilot cluster {NAMES.job_name('job-1')}-1 in aws/")
    assert left.endswith(REMEDY)
    assert again.leftovers == seen.leftovers
    assert len(harness.state.unlisted) == 1


def test_job_without_machines_is_held_if_numbers_decrease(new_harness: NewSkyPilotHarness) -> None:
    """Its machines may have come up after the last observation."""
    harness = start_job(new_harness, JobSimulation(denial_rate=1), LaunchStatus.WAITING)
    while not harness.jobs():
        harness.pass_time(5)
    harness.look()

    seen = lose_everything(harness)

    assert (seen.status, len(seen.leftovers)) == (LaunchStatus.UNKNOWN, 1)


def test_no_launch_is_sent_while_records_are_lost(new_harness: NewSkyPilotHarness) -> None:
    harness = start_job(new_harness)
    lose_everything(harness)

    with pytest.raises(
        LauncherUnreachable, match="new launches are blocked; check SkyPilot cluster"
    ):
        harness.submit("other-1")

    assert len(harness.posted("/jobs/launch")) == 1


def test_new_process_sends_no_launch_before_a_decision(new_harness: NewSkyPilotHarness) -> None:
    harness = start_job(new_harness)
    [left] = lose_everything(harness).leftovers
    restarted = harness.replica()

    with pytest.raises(LauncherUnreachable, match="new launches are blocked; check SkyPilot"):
        do(restarted.submit(harness.launch("other-1")))
    [undecided] = harness.book.undecided()
    do(restarted.cancel("job-1"))
    do(restarted.submit(harness.launch("other-1")))

    assert (undecided.key, undecided.job_id, undecided.lost) == ("job-1", "job", left)
    assert harness.book.undecided() == []
    assert len(harness.posted("/jobs/launch")) == 2


def test_launch_listed_again_needs_no_decision(new_harness: NewSkyPilotHarness) -> None:
    harness = start_job(new_harness)
    known = dict(harness.state.jobs)
    lose_everything(harness)
    harness.state.jobs.update(known)
    harness.pass_time(31)

    seen = harness.look()

    assert seen.status is not LaunchStatus.UNKNOWN
    assert harness.book.undecided() == []


def test_cancel_abandons_the_lost_machines(new_harness: NewSkyPilotHarness) -> None:
    """A pause has the same effect; another job has the number by now, and is left alone."""
    harness = start_job(new_harness)
    [left] = lose_everything(harness).leftovers
    request = harness.state.ask(
        "sky.jobs.launch", {"task": "run: 'true'", "name": "somebody-elses"}
    )
    harness.state.policy = None
    harness.state.run(request, harness.state.launch(request.body), 0)
    harness.pass_time(31)
    [other] = harness.state.jobs.values()

    do(harness.launcher.cancel("job-1"))
    abandoned = harness.look()
    harness.submit("other-1")

    assert other.number == 1
    assert not harness.posted("/jobs/cancel")
    assert (abandoned.status, abandoned.leftovers) == (LaunchStatus.FORGOTTEN, (left,))
    assert len(harness.posted("/jobs/launch")) == 2


def test_events_of_a_reused_number_are_ignored(new_harness: NewSkyPilotHarness) -> None:
    harness = start_job(new_harness)
    recorded = harness.book.events("job-1")
    harness.state.lose_everything()
    harness.state.policy = None
    request = harness.state.ask(
        "sky.jobs.launch", {"task": "run: 'true'", "name": "somebody-elses"}
    )
    harness.state.run(request, harness.state.launch(request.body), 0)
    harness.pass_time(300)

    with pytest.raises(LauncherUnreachable, match="checking again"):
        harness.look()

    assert harness.book.events("job-1") == recorded
