"""Observations of a job, with fakes of Slurm's programs that print rare responses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from holdfast.clock import SystemClock
from holdfast.domain.pricing.slurm_prices import SlurmPrices
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.slurm import SlurmConfig, SlurmLauncher, local, remote_scripts
from holdfast.launchers.slurm.batch_job import ClusterPaths
from holdfast.launchers.slurm.launch_state import LaunchState, parse
from holdfast.launchers.slurm.scontrol import SlurmJob
from holdfast.ports import Launch

SECRET = "the-secret-of-the-job"


class FakeSlurm:
    """A launch of one Slurm job, and fakes of the programs that report its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = folder / "facts"
        self.facts.mkdir()
        (self.facts / "submitted.1").write_text("job=7\n")

    def install(self, name: str, text: str) -> None:
        """Replace a program of Slurm by a script."""
        program = self.folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    def observe(self) -> LaunchState:
        """Result of one observation."""
        return parse(
            local(self.folder).bash(remote_scripts.READ_STATE, str(self.folder)).out.decode()
        )


@pytest.fixture
def fake_slurm(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


def test_last_of_several_accounting_records_counts(fake_slurm: FakeSlurm) -> None:
    fake_slurm.install(
        "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    )
    fake_slurm.install("sacct", "printf 'NODE_FAIL\\nREQUEUED\\nCANCELLED by 0\\n'")

    assert fake_slurm.observe().job == SlurmJob(state="CANCELLED", restarts=None)


@pytest.mark.parametrize(
    ("after", "row"),
    [
        ("JobState=FAILED Restarts=0", SlurmJob(state="FAILED")),
        ("JobState=RUNNING Restarts=1", SlurmJob(state="RUNNING", restarts=1)),
    ],
)
def test_job_row_and_recorded_facts_are_consistent(
    fake_slurm: FakeSlurm, after: str, row: SlurmJob
) -> None:
    """On a slow machine a job can end or restart between the two reads."""
    asked, left = fake_slurm.folder / "asked", fake_slurm.facts / "left.1"
    fake_slurm.install(
        "scontrol",
        f"if [ -e {asked} ]; then echo JobId=7 {after} X=Y; exit; fi\n"
        f"echo JobId=7 JobState=RUNNING Restarts=0 X=Y; touch {asked}; echo code=3 > {left}",
    )

    seen = fake_slurm.observe()

    assert (seen.job, seen.facts["left.1"]) == (row, {"code": "3"})


def test_job_changing_during_a_read_is_read_again(fake_slurm: FakeSlurm) -> None:
    asked = fake_slurm.folder / "asked"
    fake_slurm.install(
        "scontrol",
        f"echo >> {asked}; echo JobId=7 JobState=RUNNING Restarts=$(wc -l < {asked}) X=Y",
    )

    with pytest.raises(LauncherUnreachable, match="changed during every read"):
        fake_slurm.observe()


def launched(folder: Path) -> tuple[SlurmLauncher, Launch, Path]:
    """A launcher on a shared folder, a launch with a secret, and the folder of its files."""
    place = ClusterPaths(
        root=str(folder), worker=str(folder), python="", offline="", prices=SlurmPrices(1), cluster=""
    )  # fmt: skip
    terms = SlurmConfig(transport=local(folder), paths=place, worker=lambda: b"")
    secrets = {"KEY": SECRET}
    launch = Launch(
        key="job-1", job_id="job", first_attempt=1, task={"run": "x"}, max_failures=1, secrets=secrets
    )  # fmt: skip
    return SlurmLauncher(terms, SystemClock()), launch, Path(place.launch("job-1"))


def holds_secret(folder: Path) -> bool:
    return any(SECRET in file.read_text() for file in folder.rglob("*") if file.is_file())


def test_secrets_are_deleted_if_sbatch_fails(fake_slurm: FakeSlurm) -> None:
    launcher, launch, folder = launched(fake_slurm.folder)
    fake_slurm.install("squeue", "true")
    fake_slurm.install("sbatch", "echo 'sbatch: error: Socket timed out' >&2; exit 1")
    with pytest.raises(LauncherUnreachable):
        asyncio.run(launcher.submit(launch))
    assert holds_secret(folder), "the same may be taken later"

    fake_slurm.install("sbatch", "echo 'sbatch: error: invalid partition specified' >&2; exit 1")
    with pytest.raises(LaunchRefused, match="invalid partition"):
        asyncio.run(launcher.submit(launch))

    assert (folder / "order").exists()
    assert not holds_secret(folder)


@pytest.mark.parametrize("fact", ["ended", "forgotten"])
def test_secrets_are_deleted_with_an_ended_launch(fake_slurm: FakeSlurm, fact: str) -> None:
    left = ("scripts/ENVS", "draft/scripts/ENVS", "stage.7.pkgs.tar")
    for name in left:
        (fake_slurm.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (fake_slurm.folder / name).write_text(SECRET)

    local(fake_slurm.folder).bash(
        remote_scripts.WRITE_FACTS, str(fake_slurm.folder), "placed.1", "at=1\n"
    )
    assert all((fake_slurm.folder / name).exists() for name in left)
    local(fake_slurm.folder).bash(
        remote_scripts.WRITE_FACTS, str(fake_slurm.folder), fact, "at=1\n"
    )

    assert not holds_secret(fake_slurm.folder)
