"""Deletion of launch folders on Slurm, and the conditions that prevent it."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.domain.pricing.slurm_prices import SlurmPrices
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.slurm.batch_job import ClusterPaths
from holdfast.launchers.slurm.launcher import SlurmConfig, SlurmLauncher
from holdfast.launchers.slurm.transport import local
from support.fakes import FixedClock

RECORD = {"facts", "order", "lock"}


class SharedFolder:
    """A shared folder, and a `squeue` that prints the content of a file."""

    def __init__(self, root: Path) -> None:
        self.root, programs = root / "shared", root / "programs"
        programs.mkdir()
        self.queue = programs / "queue"
        self.queue.touch()
        squeue = programs / "squeue"
        squeue.write_text(f"#!/bin/bash\ncat {self.queue}\n")
        squeue.chmod(0o755)
        paths = ClusterPaths(
            root=str(self.root),
            worker="",
            python="",
            offline="",
            prices=SlurmPrices(1),
            cluster="",
        )
        config = SlurmConfig(transport=local(programs), paths=paths, worker=lambda: b"")
        self.launcher = SlurmLauncher(config, FixedClock())

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
def shared(tmp_path: Path) -> SharedFolder:
    return SharedFolder(tmp_path)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    "facts", [("submitted.1", "ended"), ("submitted.1", "forgotten"), ("cancelled",)]
)
def test_folder_of_an_ended_launch_is_emptied(shared: SharedFolder, facts: tuple[str, ...]) -> None:
    folder = shared.launched("job-1", *facts)
    before = shared.launcher.keys_with_files()

    shared.launcher.discard("job-1")
    shared.launcher.discard("job-1")

    assert before == ["job-1"]
    assert names(folder) == RECORD
    assert names(folder / "facts") == set(facts)
    assert shared.launcher.keys_with_files() == []


@pytest.mark.parametrize("facts", [(), ("submitted.1",), ("submitted.1", "cancelled")])
def test_folder_of_a_possibly_running_launch_is_kept(
    shared: SharedFolder, facts: tuple[str, ...]
) -> None:
    folder = shared.launched("job-1", *facts)

    shared.launcher.discard("job-1")

    assert names(folder) > {"attempts", "job.sbatch", ".hidden"}
    assert shared.launcher.keys_with_files() == ["job-1"]


def test_folder_is_kept_while_slurm_has_a_job_of_the_launch(shared: SharedFolder) -> None:
    folder = shared.launched("job-1", "submitted.1", "ended")
    shared.queue.write_text("17\n")

    shared.launcher.discard("job-1")

    assert "attempts" in names(folder)


def test_folder_is_kept_while_slurm_does_not_respond(shared: SharedFolder) -> None:
    folder = shared.launched("job-1", "submitted.1", "ended")
    shared.queue.unlink()

    with pytest.raises(LauncherUnreachable):
        shared.launcher.discard("job-1")

    assert "attempts" in names(folder)


def test_cluster_without_launches_has_no_files(shared: SharedFolder) -> None:
    assert shared.launcher.keys_with_files() == []
    shared.launcher.discard("job-1")
