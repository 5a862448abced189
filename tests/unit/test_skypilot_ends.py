"""Ends at SkyPilot: cancels that are lost or late, what is forgotten, what is twice there, and who tells of it."""

from __future__ import annotations

import pytest
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.launch_admission import TokenState
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable
from skyhouse import NAMES, NewHouse, die_past_the_gate, do, submit_in_vain
from skystand import Nature


def test_a_job_that_one_listing_lacks_is_not_gone(new_house: NewHouse) -> None:
    house = new_house()
    house.until(LaunchStatus.UP)
    house.server.old_queue = []

    for _ in range(3):
        with pytest.raises(LauncherUnreachable, match="looking again"):
            do(house.replica().look("job-1"))
        house.pass_time(15)
    house.server.old_queue = None

    assert do(house.replica().look("job-1")).standing is LaunchStatus.UP
    row = house.book.find("job-1")
    assert row
    assert row.missing_since is None


def test_machines_are_seen_and_priced_before_the_job_runs(new_house: NewHouse) -> None:
    """SkyPilot may set them up for long, or fail to, and they are paid for all the same."""
    house = new_house(Nature(setup_s=3600))
    placed = house.until(LaunchStatus.UP).trail[0]
    [job] = house.jobs()
    status = job.status
    do(house.launcher.cancel("job-1"))
    ended = house.until(LaunchStatus.ENDED)

    assert status == "STARTING"
    assert placed.zone.count("/") == 2, "cloud, region and zone"
    assert placed.micros_per_hour > 0
    assert not placed.is_price_estimate
    assert [p.ready_at for p in ended.trail] == [placed.ready_at]


def test_a_job_that_skypilot_has_lost_for_good_is_forgotten(new_house: NewHouse) -> None:
    house = new_house(Nature(runs_s=100_000))
    house.until(LaunchStatus.UP)
    house.truth.take_nodes(house.jobs()[0])
    house.truth.jobs.clear()
    since = house.clock.now()

    seen = house.until(LaunchStatus.FORGOTTEN)

    assert seen.placements == 0
    assert (house.clock.now() - since).total_seconds() <= 120


def test_a_number_that_another_job_has_now_is_not_ours(new_house: NewHouse) -> None:
    house = new_house(Nature(runs_s=100_000))
    house.until(LaunchStatus.UP)
    [job] = house.jobs()
    job.name = "somebody-elses"

    house.until(LaunchStatus.FORGOTTEN)
    do(house.launcher.sweep(lambda key: False))

    assert not house.posted("/jobs/cancel")


def test_a_cancel_while_recovering_is_over_when_the_job_is(new_house: NewHouse) -> None:
    """SkyPilot writes CANCELLED for a job in back-off at once, and goes on trying to place it."""
    house = new_house(Nature(denial_rate=1, backoff_s=100_000))
    house.until(LaunchStatus.WAITING)
    while not (house.jobs() and house.jobs()[0].status == "PENDING" and house.jobs()[0].schedule != "INACTIVE"):  # fmt: skip
        house.pass_time(5)
        house.look()
    [job] = house.jobs()

    do(house.launcher.cancel("job-1"))
    house.truth.catch_up()
    while not any(event["new_status"] == "CANCELLED" for event in job.events):
        house.pass_time(0.01)
    early = house.look()
    still = job.is_over
    ended = house.until(LaunchStatus.ENDED)

    assert not still
    assert early.standing is LaunchStatus.WAITING
    assert job.is_over
    assert ended.ending
    assert ended.ending.outcome is Outcome.CANCELLED


def test_a_cancel_that_skypilot_lost_is_repeated_until_it_is_so(new_house: NewHouse) -> None:
    """Every cancel ends well, whether somebody acts on it or not."""
    house = new_house(Nature(runs_s=100_000))
    house.until(LaunchStatus.UP)
    real, house.truth.cancel = house.truth.cancel, lambda numbers: iter(())  # type: ignore[method-assign]
    for _ in range(10):
        do(house.launcher.cancel("job-1"))
        house.pass_time(10)
    deaf = house.look()
    house.truth.cancel = real  # type: ignore[method-assign]

    for _ in range(10):
        do(house.launcher.cancel("job-1"))
        house.pass_time(10)

    assert deaf.standing is LaunchStatus.UP
    assert 3 <= len(house.posted("/jobs/cancel")) <= 8
    assert all(body["job_ids"] == [1] and "name" not in body for body in house.posted("/jobs/cancel"))  # fmt: skip
    assert house.look().standing is LaunchStatus.ENDED


def test_a_job_preempted_while_it_is_cancelled_stays_cancelled(new_house: NewHouse) -> None:
    house = new_house(Nature(mtbf_s=30, runs_s=100_000))
    house.until(LaunchStatus.UP)
    do(house.launcher.cancel("job-1"))
    house.truth.take_nodes(house.jobs()[0])

    ended = house.until(LaunchStatus.ENDED)
    house.submit()
    house.pass_time(600)

    assert ended.ending
    assert ended.ending.outcome is Outcome.CANCELLED
    assert len(house.jobs()) == 1
    assert house.jobs()[0].is_over


@pytest.mark.parametrize("wait_s", [0, 0.5, 3, 20])
@pytest.mark.parametrize("gated", [True, False])
def test_a_cancel_while_the_launch_is_on_its_way_wins(
    new_house: NewHouse, wait_s: float, gated: bool
) -> None:
    """The request is turned away, or its job is cancelled."""
    house = new_house(gated=gated)
    house.truth.delay_s = 10
    submit_in_vain(house)
    house.pass_time(wait_s)

    for _ in range(100):
        try:
            do(house.launcher.cancel("job-1"))
            seen = house.look()
        except LauncherUnreachable:
            continue
        if seen.standing is LaunchStatus.ENDED:
            break
        house.pass_time(10)
    house.submit()
    house.pass_time(1000)

    assert seen.ending
    assert seen.ending.outcome is Outcome.CANCELLED
    assert not house.truth.live(NAMES.of("job-1"))
    row = house.book.find("job-1")
    assert row
    assert row.state is not TokenState.ISSUED


def test_a_cancelled_launch_that_died_past_the_gate_is_not_begun_again(
    new_house: NewHouse,
) -> None:
    house = new_house()
    die_past_the_gate(house)
    do(house.launcher.cancel("job-1"))

    ended = house.until(LaunchStatus.ENDED)
    house.submit()

    assert ended.ending
    assert ended.ending.outcome is Outcome.CANCELLED
    assert len(house.posted("/jobs/launch")) == 1


def test_without_a_gate_a_duplicate_is_cancelled_by_its_number_within_a_minute(
    new_house: NewHouse,
) -> None:
    house = new_house(Nature(runs_s=100_000), gated=False)
    house.until(LaunchStatus.UP)
    request = house.truth.ask("sky.jobs.launch", house.posted("/jobs/launch")[0])
    house.truth.run(request, house.truth.launch(request.body), 0)
    house.pass_time(20)
    assert len(house.truth.live(NAMES.of("job-1"))) == 2
    since = house.clock.now()

    while len(house.truth.live(NAMES.of("job-1"))) > 1:
        do(house.launcher.sweep(lambda key: True))
        house.pass_time(15)

    assert (house.clock.now() - since).total_seconds() <= 60
    assert [body["job_ids"] for body in house.posted("/jobs/cancel")] == [[2]] * len(house.posted("/jobs/cancel"))  # fmt: skip
    assert house.look().standing is LaunchStatus.UP


def test_two_replicas_tell_one_story_however_old_their_listings_are(new_house: NewHouse) -> None:
    """One had listed the jobs just before the nodes came up; what the other has told must not be taken back."""
    house = new_house(Nature(mtbf_s=120, runs_s=1200, losses=("preempted",)), seed=5)
    house.until(LaunchStatus.WAITING)
    replicas = [house.replica(), house.replica()]
    placements = 0
    for turn in range(1200):
        seen = do(replicas[turn % 2].look("job-1"))
        assert seen.placements >= placements
        placements = seen.placements
        if seen.standing is LaunchStatus.ENDED:
            break
        house.pass_time(2.5)

    assert seen.ending
    assert [placed.cause for placed in seen.trail[:-1]] == [Cause.NODE_FAILED] * (placements - 1)
    assert placements == len(house.jobs()[0].losses) + 1 > 3
