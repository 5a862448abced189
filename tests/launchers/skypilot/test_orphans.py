"""Orphans at SkyPilot: found in its lists, and terminated, or only reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_skypilot import JobSimulation
from holdfast.controller.orphan_cleanup import OrphanCleaner
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable
from holdfast.ports import OrphanedResource
from holdfast.store.database import upgrade
from holdfast.store.ids import new_job_id
from holdfast.store.journal import Journal
from holdfast.store.launches import LaunchBook
from sqlalchemy import Engine
from support.events import submitted
from support.fakes import FixedClock
from support.skypilot.launcher import NAMES, NewSkyPilotHarness, SkyPilotHarness, do

FOR_LONG = JobSimulation(runs_s=100_000)


def sweep(
    harness: SkyPilotHarness, times: int, *, live: bool = False
) -> list[list[OrphanedResource]]:
    """The orphans found by some sweeps, one minute apart."""
    return sweep_with(harness, times, lambda key: live)


def sweep_with(
    harness: SkyPilotHarness, times: int, is_live: Callable[[str], bool | None]
) -> list[list[OrphanedResource]]:
    """The same with the given liveness of each launch."""
    found = []
    for _ in range(times):
        found.append([*do(harness.launcher.sweep(is_live))])
        harness.pass_time(60)
    return found


def lose_jobs(harness: SkyPilotHarness) -> str:
    """Recreate SkyPilot's database of jobs but not of clusters: the cluster becomes an orphan."""
    [job] = harness.jobs()
    harness.state.lose_jobs()
    return f"SkyPilot cluster {job.cluster}"


def test_orphaned_nodes_of_ended_job_are_reported_and_terminated(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness(JobSimulation(runs_s=60, leaks=1))
    harness.until(LaunchStatus.UP)
    [job] = harness.jobs()
    harness.pass_time(120)

    waiting = harness.look()
    harness.pass_time(15 * 60)
    ended = harness.look()
    orphans = [orphan for each in sweep(harness, 14) for orphan in each]

    assert job.is_over
    assert waiting.status is LaunchStatus.UP, "its nodes run"
    assert ended.result
    assert ended.result.outcome is Outcome.SUCCEEDED
    assert ended.leftovers == (f"SkyPilot cluster {job.cluster}",)
    assert not harness.state.running_clusters()
    assert {orphan.description for orphan in orphans} == {*ended.leftovers}
    assert [orphan.stopped for orphan in orphans].index(True) == len(orphans) - 1


def test_each_leftover_is_listed_separately(new_harness: NewSkyPilotHarness) -> None:
    """A sweep also detects the end of each orphan separately."""
    harness = new_harness(JobSimulation(runs_s=60, leaks=1), gated=False)
    harness.until(LaunchStatus.UP)
    harness.pass_time(120)
    harness.state.simulations[NAMES.job_name("job-1")] = FOR_LONG
    request = harness.state.ask("sky.jobs.launch", harness.posted("/jobs/launch")[0])
    harness.state.run(request, harness.state.launch(request.body), 0)
    harness.pass_time(15 * 60)

    ended = harness.look()

    name = NAMES.job_name("job-1")
    assert ended.leftovers == (f"SkyPilot managed job 2 ({name})", f"SkyPilot cluster {name}-1")


def test_lost_job_is_forgotten_after_its_cluster_is_terminated(
    new_harness: NewSkyPilotHarness,
) -> None:
    """Otherwise it would run and cost money beside the next launch."""
    harness = new_harness(FOR_LONG)
    harness.until(LaunchStatus.UP)
    cluster = lose_jobs(harness)
    harness.pass_time(31)
    found = []
    for _ in range(9):
        with pytest.raises(LauncherUnreachable) as error:
            harness.look()
        found.append(error.value.detail)
        harness.pass_time(10)

    sweep(harness, 1, live=True)
    seen = harness.look()

    assert found[-1] == f"SkyPilot has lost the job; terminating first: {cluster}"
    assert (seen.status, seen.leftovers) == (LaunchStatus.FORGOTTEN, ())
    assert not harness.state.running_clusters()


def test_cluster_not_terminating_in_time_becomes_a_leftover(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness(FOR_LONG)
    harness.until(LaunchStatus.UP)
    cluster = lose_jobs(harness)

    seen = harness.until(LaunchStatus.FORGOTTEN, limit_s=20 * 60)
    [first], *_, [last] = sweep(harness, 2)

    assert seen.leftovers == (cluster,)
    assert (first.key, first.description, first.stopped) == ("job-1", cluster, False)
    assert (last.description, last.stopped) == (cluster, True)


def test_cluster_of_an_unlisted_job_is_found(new_harness: NewSkyPilotHarness) -> None:
    """The job was not observed after SkyPilot lost it, since it had ended for the service."""
    harness = new_harness(FOR_LONG)
    harness.until(LaunchStatus.UP)
    lose_jobs(harness)

    sweep(harness, 5)
    early = harness.posted("/down")
    sweep(harness, 8)

    assert not early, "SkyPilot may be at it by itself"
    assert not harness.state.running_clusters()


def test_sweep_lists_only_running_clusters(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness(JobSimulation(runs_s=60))
    for number in range(5):
        harness.until(LaunchStatus.UP, f"job-{number}")
    harness.pass_time(600)

    sweep(harness, 1)

    asked = harness.posted("/cost_report")[-1]
    assert (asked["days"], "cluster_names" in asked) == (0, False)


def test_cluster_listing_without_status_ends_no_launch(
    new_harness: NewSkyPilotHarness,
) -> None:
    harness = new_harness(JobSimulation(runs_s=60, leaks=1))
    harness.until(LaunchStatus.UP)
    harness.pass_time(120)
    harness.server._costs = lambda body: iter([{"name": "x"}])  # type: ignore[method-assign]

    with pytest.raises(LauncherUnreachable, match="cannot parse"):
        harness.look()


# Resources of another database


def another_database(
    harness: SkyPilotHarness, open_engine: Callable[[str], Engine], folder: Path
) -> Journal:
    """Start the service with an empty database."""
    engine = open_engine(f"sqlite:///{folder / 'another.db'}")
    upgrade(engine)
    harness.book = LaunchBook(engine, b"secret")
    harness.launcher = harness.replica()
    return Journal(engine, harness.clock)


def liveness_in(journal: Journal) -> Callable[[str], bool | None]:
    """Return a function that states whether a service on that database considers a launch live."""
    return OrphanCleaner(journal=journal, launchers={}, clock=FixedClock()).is_live


def a_key(harness: SkyPilotHarness) -> str:
    """Return a launch key of a job that is submitted now."""
    return f"{new_job_id(harness.clock.now())}-1"


def test_jobs_of_another_database_are_listed_but_not_cancelled(
    new_harness: NewSkyPilotHarness, open_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    """Regression: a changed HOLDFAST_DATABASE_URL led to the cancellation of all running jobs."""
    harness = new_harness(FOR_LONG)
    harness.until(LaunchStatus.UP, a_key(harness))
    [job] = harness.state.jobs.values()
    journal = another_database(harness, open_engine, tmp_path)

    before = sweep_with(harness, 10, liveness_in(journal))
    journal.submit("job", submitted())
    after = sweep_with(harness, 10, liveness_in(journal))
    [orphan] = harness.launcher.strangers

    assert not any(before + after)
    assert not harness.posted("/jobs/cancel")
    assert len(harness.state.running_clusters()) == 1
    assert orphan.description == f"SkyPilot managed job 1 ({job.name})"
    assert NAMES.job_name(orphan.key or "") == job.name


def test_orphans_of_another_database_are_left_running(
    new_harness: NewSkyPilotHarness, open_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    harness = new_harness(JobSimulation(runs_s=60, leaks=1))
    harness.until(LaunchStatus.UP, a_key(harness))
    journal = another_database(harness, open_engine, tmp_path)
    journal.submit("job", submitted())
    harness.pass_time(120)

    sweep_with(harness, 20, liveness_in(journal))

    [cluster] = harness.state.running_clusters()
    assert [orphan.description for orphan in harness.launcher.strangers] == [
        f"SkyPilot cluster {cluster.name}"
    ]


def test_job_newer_than_a_backup_stops_only_on_request(
    new_harness: NewSkyPilotHarness, open_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    """The job is newer than the oldest event of the restored database, older than its newest."""
    harness = new_harness(FOR_LONG)
    journal = another_database(harness, open_engine, tmp_path)
    journal.submit("job", submitted())
    harness.pass_time(60)
    key = a_key(harness)
    harness.until(LaunchStatus.UP, key)
    with harness.book._engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM launches")
    harness.pass_time(60)
    journal.submit("a-later-job", submitted())

    alone = sweep_with(harness, 10, liveness_in(journal))
    unrequested = harness.posted("/jobs/cancel")
    listed = [orphan.key for orphan in harness.launcher.strangers]
    do(harness.launcher.cancel(key))
    sweep_with(harness, 5, liveness_in(journal))

    assert not any(alone)
    assert not unrequested
    assert listed == [key]
    assert harness.posted("/jobs/cancel")[0]["job_ids"] == [1]
    assert not harness.state.live(NAMES.job_name(key))
    assert not harness.state.running_clusters()


# Copies of files


@pytest.fixture
def source(tmp_path: Path) -> str:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    return str(folder)


def test_files_of_a_launch_are_kept_until_it_ends(
    new_harness: NewSkyPilotHarness, source: str
) -> None:
    """SkyPilot sends them to the nodes at each recovery; later they would only fill the disk."""
    harness = new_harness(FOR_LONG)
    harness.submit(workdir=source)
    copies = harness.folder / "workdirs"
    (copies / ".job-1.0123abcd").mkdir()  # A crash left this in the middle of a copy.

    sweep(harness, 1, live=True)
    kept = {path.name for path in copies.iterdir()}
    sweep(harness, 1)

    assert kept == {"job-1", ".job-1.0123abcd"}
    assert not [*copies.iterdir()]


def test_files_of_launches_from_another_database_are_kept(
    new_harness: NewSkyPilotHarness,
    open_engine: Callable[[str], Engine],
    tmp_path: Path,
    source: str,
) -> None:
    harness = new_harness(FOR_LONG)
    harness.submit(workdir=source)
    another_database(harness, open_engine, tmp_path)

    sweep(harness, 2)

    assert (harness.folder / "workdirs/job-1/train.py").exists()
