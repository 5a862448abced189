"""A SkyPilot with a wholly new database: what ran under the old one may run on, and is neither doubled nor passed over."""

from __future__ import annotations

import pytest
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable
from skyhouse import NAMES, NewHouse, SkyHouse, do
from skystand import Nature

FOR_LONG = Nature(runs_s=100_000)
SAID = "end it in the cloud's console, then cancel the job, or pause and resume it"


def with_a_job(
    new_house: NewHouse, nature: Nature = FOR_LONG, at: LaunchStatus = LaunchStatus.UP
) -> SkyHouse:
    house = new_house(nature)
    house.until(at)
    return house


def lose_everything(house: SkyHouse) -> Observation:
    """What is seen of a job once listings agree that SkyPilot has lost it with all else."""
    house.truth.lose_everything()
    house.pass_time(31)
    with pytest.raises(LauncherUnreachable, match="looking again"):
        house.look()
    house.pass_time(61)
    return house.look()


def test_lost_machines_are_named_and_their_job_is_held(new_house: NewHouse) -> None:
    house = with_a_job(new_house)

    seen = lose_everything(house)
    again = do(house.replica().look("job-1"))

    [left] = seen.leftovers
    assert (seen.standing, again.standing) == (LaunchStatus.UNKNOWN, LaunchStatus.UNKNOWN)
    assert left.startswith(f"SkyPilot cluster {NAMES.of('job-1')}-1 in aws/")
    assert left.endswith(SAID)
    assert again.leftovers == seen.leftovers
    assert len(house.truth.unseen) == 1


def test_a_job_without_machines_is_held_as_numbers_go_back(new_house: NewHouse) -> None:
    """Its machines may have come after the last look."""
    house = with_a_job(new_house, Nature(denial_rate=1), LaunchStatus.WAITING)
    while not house.jobs():
        house.pass_time(5)
    house.look()

    seen = lose_everything(house)

    assert (seen.standing, len(seen.leftovers)) == (LaunchStatus.UNKNOWN, 1)


def test_nothing_is_launched_while_records_are_lost(new_house: NewHouse) -> None:
    house = with_a_job(new_house)
    lose_everything(house)

    with pytest.raises(
        LauncherUnreachable, match="nothing is launched yet: look after SkyPilot cluster"
    ):
        house.submit("other-1")

    assert len(house.posted("/jobs/launch")) == 1


def test_a_new_process_launches_nothing_before_a_decision(new_house: NewHouse) -> None:
    house = with_a_job(new_house)
    [left] = lose_everything(house).leftovers
    restarted = house.replica()

    with pytest.raises(LauncherUnreachable, match="nothing is launched yet: look after SkyPilot"):
        do(restarted.submit(house.launch("other-1")))
    [undecided] = house.book.undecided()
    do(restarted.cancel("job-1"))
    do(restarted.submit(house.launch("other-1")))

    assert (undecided.key, undecided.job_id, undecided.lost) == ("job-1", "job", left)
    assert house.book.undecided() == []
    assert len(house.posted("/jobs/launch")) == 2


def test_a_launch_that_is_listed_again_needs_no_decision(new_house: NewHouse) -> None:
    house = with_a_job(new_house)
    known = dict(house.truth.jobs)
    lose_everything(house)
    house.truth.jobs.update(known)
    house.pass_time(31)

    seen = house.look()

    assert seen.standing is not LaunchStatus.UNKNOWN
    assert house.book.undecided() == []


def test_a_cancel_gives_the_lost_machines_up(new_house: NewHouse) -> None:
    """It is what a pause comes to as well; the number is by now another job's, which is left alone."""
    house = with_a_job(new_house)
    [left] = lose_everything(house).leftovers
    request = house.truth.ask("sky.jobs.launch", {"task": "run: 'true'", "name": "somebody-elses"})
    house.truth.policy = None
    house.truth.run(request, house.truth.launch(request.body), 0)
    house.pass_time(31)
    [other] = house.truth.jobs.values()

    do(house.launcher.cancel("job-1"))
    given_up = house.look()
    house.submit("other-1")

    assert other.number == 1
    assert not house.posted("/jobs/cancel")
    assert (given_up.standing, given_up.leftovers) == (LaunchStatus.FORGOTTEN, (left,))
    assert len(house.posted("/jobs/launch")) == 2


def test_events_of_a_reused_number_are_not_ours(new_house: NewHouse) -> None:
    house = with_a_job(new_house)
    told = house.book.told("job-1")
    house.truth.lose_everything()
    house.truth.policy = None
    request = house.truth.ask("sky.jobs.launch", {"task": "run: 'true'", "name": "somebody-elses"})
    house.truth.run(request, house.truth.launch(request.body), 0)
    house.pass_time(300)

    with pytest.raises(LauncherUnreachable, match="looking again"):
        house.look()

    assert house.book.told("job-1") == told
