"""Folders of launches on Slurm: what goes once a launch is over, and what holds it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.slurm.batch_job import ClusterPaths
from holdfast.launchers.slurm.launcher import SlurmConfig, SlurmLauncher
from holdfast.launchers.slurm.transport import local
from support.fakes import FixedClock

RECORD = {"facts", "order", "lock"}


class Shelf:
    """A shared folder, and a `squeue` that prints what a file says."""

    def __init__(self, root: Path) -> None:
        self.root, programs = root / "shared", root / "programs"
        programs.mkdir()
        self.queue = programs / "queue"
        self.queue.touch()
        squeue = programs / "squeue"
        squeue.write_text(f"#!/bin/bash\ncat {self.queue}\n")
        squeue.chmod(0o755)
        place = ClusterPaths(
            root=str(self.root),
            worker="",
            python="",
            offline="",
            micros_per_node_hour=1,
            cluster="",
        )
        terms = SlurmConfig(transport=local(programs), paths=place, worker=lambda: b"")
        self.launcher = SlurmLauncher(terms, FixedClock())

    def launched(self, key: str, *facts: str) -> Path:
        folder = self.root / "launches" / key
        for part in ("facts", "attempts/1/node-0", "spool", "scripts", ".hidden"):
            (folder / part).mkdir(parents=True)
        for file in (
            "order",
            "job.sbatch",
            "spool/attempt-1.jsonl",
            *(f"facts/{f}" for f in facts),
        ):
            (folder / file).write_text("x")
        return folder


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    "facts", [("submitted.1", "ended"), ("submitted.1", "forgotten"), ("cancelled",)]
)
def test_folder_of_a_launch_that_is_over_is_emptied(shelf: Shelf, facts: tuple[str, ...]) -> None:
    folder = shelf.launched("job-1", *facts)
    before = shelf.launcher.keys_with_files()

    shelf.launcher.discard("job-1")
    shelf.launcher.discard("job-1")

    assert before == ["job-1"]
    assert names(folder) == RECORD
    assert names(folder / "facts") == set(facts)
    assert shelf.launcher.keys_with_files() == []


@pytest.mark.parametrize("facts", [(), ("submitted.1",), ("submitted.1", "cancelled")])
def test_folder_of_a_launch_that_may_run_stays(shelf: Shelf, facts: tuple[str, ...]) -> None:
    folder = shelf.launched("job-1", *facts)

    shelf.launcher.discard("job-1")

    assert names(folder) > {"attempts", "job.sbatch", ".hidden"}
    assert shelf.launcher.keys_with_files() == ["job-1"]


def test_folder_stays_while_slurm_has_a_job_of_the_launch(shelf: Shelf) -> None:
    folder = shelf.launched("job-1", "submitted.1", "ended")
    shelf.queue.write_text("17\n")

    shelf.launcher.discard("job-1")

    assert "attempts" in names(folder)


def test_folder_stays_where_slurm_does_not_answer(shelf: Shelf) -> None:
    folder = shelf.launched("job-1", "submitted.1", "ended")
    shelf.queue.unlink()

    with pytest.raises(LauncherUnreachable):
        shelf.launcher.discard("job-1")

    assert "attempts" in names(folder)


def test_cluster_without_launches_keeps_nothing(shelf: Shelf) -> None:
    assert shelf.launcher.keys_with_files() == []
    shelf.launcher.discard("job-1")
