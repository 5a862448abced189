"""A SkyPilot with a wholly new database: what ran under the old one may run on, and is neither doubled nor passed over."""

from __future__ import annotations

import pytest
from fake_skypilot import JobSimulation
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable
from support.skypilot.launcher import NAMES, NewSkyPilotHarness, SkyPilotHarness, do

FOR_LONG = JobSimulation(runs_s=100_000)
SAID = "terminate it in the cloud's console, then cancel the job, or pause and resume it"


def with_a_job(
    new_harness: NewSkyPilotHarness,
    nature: JobSimulation = FOR_LONG,
    at: LaunchStatus = LaunchStatus.UP,
) -> SkyPilotHarness:
    harness = new_harness(nature)
    harness.until(at)
    return harness


def lose_everything(harness: SkyPilotHarness) -> Observation:
    """What is seen of a job once listings agree that SkyPilot has lost it with all else."""
    harness.truth.lose_everything()
    harness.pass_time(31)
    with pytest.raises(LauncherUnreachable, match="checking again"):
        harness.look()
    harness.pass_time(61)
    return harness.look()


def test_lost_machines_are_named_and_their_job_is_held(new_harness: NewSkyPilotHarness) -> None:
    harness = with_a_job(new_harness)

    seen = lose_everything(harness)
    again = do(harness.replica().observe("job-1"))

    [left] = seen.leftovers
    assert (seen.status, again.status) == (LaunchStatus.UNKNOWN, LaunchStatus.UNKNOWN)
    assert left.startswith(f"SkyPilot cluster {NAMES.job_name('job-1')}-1 in aws/")
    assert left.endswith(SAID)
    assert again.leftovers == seen.leftovers
    assert len(harness.truth.unseen) == 1


def test_a_job_without_machines_is_held_as_numbers_go_back(new_harness: NewSkyPilotHarness) -> None:
    """Its machines may have come after the last look."""
    harness = with_a_job(new_harness, JobSimulation(denial_rate=1), LaunchStatus.WAITING)
    while not harness.jobs():
        harness.pass_time(5)
    harness.look()

    seen = lose_everything(harness)

    assert (seen.status, len(seen.leftovers)) == (LaunchStatus.UNKNOWN, 1)


def test_nothing_is_launched_while_records_are_lost(new_harness: NewSkyPilotHarness) -> None:
    harness = with_a_job(new_harness)
    lose_everything(harness)

    with pytest.raises(
        LauncherUnreachable, match="new launches are blocked; check SkyPilot cluster"
    ):
        harness.submit("other-1")

    assert len(harness.posted("/jobs/launch")) == 1


def test_a_new_process_launches_nothing_before_a_decision(new_harness: NewSkyPilotHarness) -> None:
    harness = with_a_job(new_harness)
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


def test_a_launch_that_is_listed_again_needs_no_decision(new_harness: NewSkyPilotHarness) -> None:
    harness = with_a_job(new_harness)
    known = dict(harness.truth.jobs)
    lose_everything(harness)
    harness.truth.jobs.update(known)
    harness.pass_time(31)

    seen = harness.look()

    assert seen.status is not LaunchStatus.UNKNOWN
    assert harness.book.undecided() == []


def test_a_cancel_gives_the_lost_machines_up(new_harness: NewSkyPilotHarness) -> None:
    """It is what a pause comes to as well; the number is by now another job's, which is left alone."""
    harness = with_a_job(new_harness)
    [left] = lose_everything(harness).leftovers
    request = harness.truth.ask(
        "sky.jobs.launch", {"task": "run: 'true'", "name": "somebody-elses"}
    )
    harness.truth.policy = None
    harness.truth.run(request, harness.truth.launch(request.body), 0)
    harness.pass_time(31)
    [other] = harness.truth.jobs.values()

    do(harness.launcher.cancel("job-1"))
    given_up = harness.look()
    harness.submit("other-1")

    assert other.number == 1
    assert not harness.posted("/jobs/cancel")
    assert (given_up.status, given_up.leftovers) == (LaunchStatus.FORGOTTEN, (left,))
    assert len(harness.posted("/jobs/launch")) == 2


def test_events_of_a_reused_number_are_not_ours(new_harness: NewSkyPilotHarness) -> None:
    harness = with_a_job(new_harness)
    recorded = harness.book.events("job-1")
    harness.truth.lose_everything()
    harness.truth.policy = None
    request = harness.truth.ask(
        "sky.jobs.launch", {"task": "run: 'true'", "name": "somebody-elses"}
    )
    harness.truth.run(request, harness.truth.launch(request.body), 0)
    harness.pass_time(300)

    with pytest.raises(LauncherUnreachable, match="checking again"):
        harness.look()

    assert harness.book.events("job-1") == recorded
