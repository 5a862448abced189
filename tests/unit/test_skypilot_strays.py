"""What runs at SkyPilot and belongs to no live launch: found by listing what stands, stopped, or left alone and told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FixedClock
from histories import submitted
from holdfast.controller.orphan_cleanup import OrphanCleaner
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable
from holdfast.ports import OrphanedResource
from holdfast.store.database import upgrade
from holdfast.store.ids import new_job_id
from holdfast.store.journal import Journal
from holdfast.store.launches import LaunchBook
from skyhouse import NAMES, NewHouse, SkyHouse, do
from skystand import Nature
from sqlalchemy import Engine

FOR_LONG = Nature(runs_s=100_000)


def sweeps(house: SkyHouse, times: int, *, live: bool = False) -> list[list[OrphanedResource]]:
    """What so many sweeps tell, a minute between two."""
    return sweeps_as(house, times, lambda key: live)


def sweeps_as(
    house: SkyHouse, times: int, is_live: Callable[[str], bool | None]
) -> list[list[OrphanedResource]]:
    """The same, with what is known of each launch."""
    told = []
    for _ in range(times):
        told.append([*do(house.launcher.sweep(is_live))])
        house.pass_time(60)
    return told


def lose_jobs(house: SkyHouse) -> str:
    """SkyPilot's database of jobs is made anew, and that of its clusters is not; the cluster that nobody minds."""
    [job] = house.jobs()
    house.truth.lose_jobs()
    return f"SkyPilot cluster {job.cluster}"


def test_nodes_that_a_job_has_left_behind_are_told_of_and_taken_down(new_house: NewHouse) -> None:
    house = new_house(Nature(runs_s=60, leaks=1))
    house.until(LaunchStatus.UP)
    [job] = house.jobs()
    house.pass_time(120)

    waiting = house.look()
    house.pass_time(15 * 60)
    ended = house.look()
    strays = [stray for told in sweeps(house, 14) for stray in told]

    assert job.is_over
    assert waiting.standing is LaunchStatus.UP, "its nodes stand"
    assert ended.ending
    assert ended.ending.outcome is Outcome.SUCCEEDED
    assert ended.leftovers == (f"SkyPilot cluster {job.cluster}",)
    assert not house.truth.standing()
    assert {stray.what for stray in strays} == {*ended.leftovers}
    assert [stray.stopped for stray in strays].index(True) == len(strays) - 1


def test_each_thing_that_is_left_is_told_by_itself(new_house: NewHouse) -> None:
    """A sweep finds each gone by itself, too."""
    house = new_house(Nature(runs_s=60, leaks=1), gated=False)
    house.until(LaunchStatus.UP)
    house.pass_time(120)
    house.truth.natures[NAMES.of("job-1")] = FOR_LONG
    request = house.truth.ask("sky.jobs.launch", house.posted("/jobs/launch")[0])
    house.truth.run(request, house.truth.launch(request.body), 0)
    house.pass_time(15 * 60)

    ended = house.look()

    name = NAMES.of("job-1")
    assert ended.leftovers == (f"SkyPilot managed job 2 ({name})", f"SkyPilot cluster {name}-1")


def test_a_job_that_skypilot_has_lost_is_forgotten_once_its_cluster_is_gone(
    new_house: NewHouse,
) -> None:
    """Or it would run on and be paid for beside the next launch."""
    house = new_house(FOR_LONG)
    house.until(LaunchStatus.UP)
    cluster = lose_jobs(house)
    house.pass_time(31)
    said = []
    for _ in range(9):
        with pytest.raises(LauncherUnreachable) as trouble:
            house.look()
        said.append(trouble.value.detail)
        house.pass_time(10)

    sweeps(house, 1, live=True)
    seen = house.look()

    assert said[-1] == f"SkyPilot has lost the job; first goes {cluster}"
    assert (seen.standing, seen.leftovers) == (LaunchStatus.FORGOTTEN, ())
    assert not house.truth.standing()


def test_a_cluster_that_does_not_go_is_told_and_not_waited_for_for_ever(
    new_house: NewHouse,
) -> None:
    house = new_house(FOR_LONG)
    house.until(LaunchStatus.UP)
    cluster = lose_jobs(house)

    seen = house.until(LaunchStatus.FORGOTTEN, limit_s=20 * 60)
    [first], *_, [last] = sweeps(house, 2)

    assert seen.leftovers == (cluster,)
    assert (first.key, first.what, first.stopped) == ("job-1", cluster, False)
    assert (last.what, last.stopped) == (cluster, True)


def test_a_cluster_is_seen_though_its_job_is_in_no_listing(new_house: NewHouse) -> None:
    """Nobody has looked at the job since SkyPilot lost it: it was over for us."""
    house = new_house(FOR_LONG)
    house.until(LaunchStatus.UP)
    lose_jobs(house)

    sweeps(house, 5)
    early = house.posted("/down")
    sweeps(house, 8)

    assert not early, "SkyPilot may be at it by itself"
    assert not house.truth.standing()


def test_a_sweep_asks_for_what_stands_and_not_for_what_there_was(new_house: NewHouse) -> None:
    house = new_house(Nature(runs_s=60))
    for number in range(5):
        house.until(LaunchStatus.UP, f"job-{number}")
    house.pass_time(600)

    sweeps(house, 1)

    asked = house.posted("/cost_report")[-1]
    assert (asked["days"], "cluster_names" in asked) == (0, False)


def test_a_cluster_of_which_it_is_not_said_whether_it_stands_ends_nothing(
    new_house: NewHouse,
) -> None:
    house = new_house(Nature(runs_s=60, leaks=1))
    house.until(LaunchStatus.UP)
    house.pass_time(120)
    house.server._costs = lambda body: iter([{"name": "x"}])  # type: ignore[method-assign]

    with pytest.raises(LauncherUnreachable, match="cannot be understood"):
        house.look()


# Of another database


def another_database(
    house: SkyHouse, open_engine: Callable[[str], Engine], folder: Path
) -> Journal:
    """The service is started with an empty database."""
    engine = open_engine(f"sqlite:///{folder / 'another.db'}")
    upgrade(engine)
    house.book = LaunchBook(engine, b"secret")
    house.launcher = house.replica()
    return Journal(engine, house.clock)


def known_to(journal: Journal) -> Callable[[str], bool | None]:
    """What a service over that database says of launches."""
    return OrphanCleaner(journal=journal, launchers={}, clock=FixedClock()).is_live


def a_key(house: SkyHouse) -> str:
    """A key such as jobs have that are submitted now."""
    return f"{new_job_id(house.clock.now())}-1"


def test_what_was_launched_from_another_database_is_left_alone_and_told(
    new_house: NewHouse, open_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    """HOLDFAST_DATABASE_URL was changed, and all jobs that train would have been cancelled within minutes."""
    house = new_house(FOR_LONG)
    house.until(LaunchStatus.UP, a_key(house))
    [job] = house.truth.jobs.values()
    journal = another_database(house, open_engine, tmp_path)

    before = sweeps_as(house, 10, known_to(journal))
    journal.submit("job", submitted())
    after = sweeps_as(house, 10, known_to(journal))
    [stray] = house.launcher.strangers

    assert not any(before + after)
    assert not house.posted("/jobs/cancel")
    assert len(house.truth.standing()) == 1
    assert stray.what == f"SkyPilot managed job 1 ({job.name})"
    assert NAMES.of(stray.key or "") == job.name


def test_what_another_database_has_left_behind_is_not_ours_to_take_down_either(
    new_house: NewHouse, open_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    house = new_house(Nature(runs_s=60, leaks=1))
    house.until(LaunchStatus.UP, a_key(house))
    journal = another_database(house, open_engine, tmp_path)
    journal.submit("job", submitted())
    house.pass_time(120)

    sweeps_as(house, 20, known_to(journal))

    [cluster] = house.truth.standing()
    assert [stray.what for stray in house.launcher.strangers] == [
        f"SkyPilot cluster {cluster.name}"
    ]


def test_a_job_from_after_a_backup_is_stopped_only_on_request(
    new_house: NewHouse, open_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    """It is younger than the oldest events of the restored database, and older than its newest."""
    house = new_house(FOR_LONG)
    journal = another_database(house, open_engine, tmp_path)
    journal.submit("job", submitted())
    house.pass_time(60)
    key = a_key(house)
    house.until(LaunchStatus.UP, key)
    with house.book._engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM launches")
    house.pass_time(60)
    journal.submit("a-later-job", submitted())

    alone = sweeps_as(house, 10, known_to(journal))
    unasked = house.posted("/jobs/cancel")
    listed = [stray.key for stray in house.launcher.strangers]
    do(house.launcher.cancel(key))
    sweeps_as(house, 5, known_to(journal))

    assert not any(alone)
    assert not unasked
    assert listed == [key]
    assert house.posted("/jobs/cancel")[0]["job_ids"] == [1]
    assert not house.truth.live(NAMES.of(key))
    assert not house.truth.standing()


# Copies of files


@pytest.fixture
def source(tmp_path: Path) -> str:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    return str(folder)


def test_the_files_of_a_launch_are_kept_until_it_is_over(new_house: NewHouse, source: str) -> None:
    """SkyPilot sends them to the nodes at each recovery; afterwards they would fill the disk, a copy for each launch."""
    house = new_house(FOR_LONG)
    house.submit(workdir=source)
    copies = house.folder / "workdirs"
    (copies / ".job-1.0123abcd").mkdir()  # Of a crash in the middle of a copy.

    sweeps(house, 1, live=True)
    kept = {path.name for path in copies.iterdir()}
    sweeps(house, 1)

    assert kept == {"job-1", ".job-1.0123abcd"}
    assert not [*copies.iterdir()]


def test_the_files_of_launches_from_another_database_are_kept(
    new_house: NewHouse, open_engine: Callable[[str], Engine], tmp_path: Path, source: str
) -> None:
    house = new_house(FOR_LONG)
    house.submit(workdir=source)
    another_database(house, open_engine, tmp_path)

    sweeps(house, 2)

    assert (house.folder / "workdirs/job-1/train.py").exists()
