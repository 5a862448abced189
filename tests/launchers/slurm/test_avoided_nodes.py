"""Slurm jobs exclude nodes with unhealthy GPUs, unless too few nodes are left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from holdfast.domain.pricing.slurm_prices import SlurmPrices
from holdfast.errors import LaunchRefused
from holdfast.launchers.slurm.batch_job import ClusterPaths, exclude_option
from holdfast.launchers.slurm.launcher import SlurmConfig, SlurmLauncher
from holdfast.launchers.slurm.transport import local
from holdfast.ports import AvoidedNode, Launch
from support.fakes import FixedClock

REFUSING = "case \"$*\" in *--exclude=*) echo 'sbatch: error: Requested node configuration is not available' >&2; exit 1;; esac"


def avoided(*hosts: str) -> list[AvoidedNode]:
    return [AvoidedNode(host=host) for host in hosts]


@pytest.mark.parametrize(
    ("options", "hosts", "expected"),
    [
        ([], ["hpc07", "hpc09"], ["--exclude=hpc07,hpc09"]),
        (["--exclude=hpc[01-03]", "--nodes=2"], ["hpc07"], ["--exclude=hpc[01-03],hpc07"]),
        (["--nodelist=hpc07"], ["hpc07"], []),
        ([], ["", "--uid=0", "a,b", "a b", "hpc07;reboot"], []),
        ([], [], []),
    ],
)
def test_option_names_plain_hosts_beside_those_of_the_job(
    options: list[str], hosts: list[str], expected: list[str]
) -> None:
    assert exclude_option(options, avoided(*hosts)) == expected


class Cluster:
    """A cluster whose `sbatch` records its options."""

    def __init__(self, root: Path, reaction: str = "") -> None:
        self._root, programs = root, root / "programs"
        programs.mkdir()
        scripts = {"sbatch": f'echo "$*" >> {root}/asked\n{reaction}\necho 7', "squeue": ""}
        for name, text in scripts.items():
            (programs / name).write_text(f"#!/bin/bash\n{text}\n")
            (programs / name).chmod(0o755)
        worker = root / "worker"
        worker.mkdir()
        paths = ClusterPaths(
            root=str(root / "shared"),
            worker=str(worker),
            python="",
            offline="",
            prices=SlurmPrices(1),
            cluster="",
        )
        config = SlurmConfig(
            transport=local(programs),
            paths=paths,
            worker=lambda: b"",
            avoided=lambda: avoided("hpc07"),
        )
        self._launcher = SlurmLauncher(config, FixedClock())

    def submit(self) -> list[str]:
        """Submit a launch, and return the options of each call of `sbatch`."""
        task = {"run": "true", "resources": {"infra": "slurm"}}
        launch = Launch(key="job-1", job_id="job", first_attempt=1, task=task, max_failures=1)
        asyncio.run(self._launcher.submit(launch))
        return (self._root / "asked").read_text().splitlines()


def test_submission_excludes_nodes_with_unhealthy_gpus(tmp_path: Path) -> None:
    [asked] = Cluster(tmp_path).submit()
    assert asked.endswith("--exclude=hpc07 job.sbatch")


def test_refused_exclusion_is_left_out(tmp_path: Path) -> None:
    first, second = Cluster(tmp_path, REFUSING).submit()
    assert "--exclude=hpc07" in first
    assert "--exclude" not in second


def test_refusal_of_the_job_itself_is_final(tmp_path: Path) -> None:
    with pytest.raises(LaunchRefused, match="Invalid partition"):
        Cluster(tmp_path, "echo 'sbatch: error: Invalid partition' >&2; exit 1").submit()
