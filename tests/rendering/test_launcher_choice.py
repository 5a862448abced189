"""The launcher of a job is one key of its file; the program is the same on every launcher."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.pricing.slurm_prices import SlurmPrices
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.skypilot import upload
from holdfast.launchers.slurm import batch_job
from holdfast.launchers.workdir_copy import copy_workdir
from holdfast.ports import Launch
from holdfast.rendering import TorchrunRequest, render, torchrun_commands

FILE = """
name: same
num_nodes: 2
workdir: /srv/same
run: holdfast-worker run train.py --epochs 50
resources: {{infra: {infra}, accelerators: A100:8}}
holdfast: {{checkpoint: {{store: "s3://bucket/prefix"}}}}
"""


PLACE = batch_job.ClusterPaths(
    root="/shared", worker="", python="", offline="", prices=SlurmPrices(1), cluster=""
)


@pytest.mark.parametrize("infra", ["slurm", "aws", "gcp", "kubernetes"])
def test_program_is_the_same_on_every_launcher(infra: str) -> None:
    here = render(parse_job_file(FILE.format(infra="local")).spec).task
    there = render(parse_job_file(FILE.format(infra=infra)).spec).task

    assert there["run"] == here["run"] == "holdfast-worker run train.py --epochs 50"
    assert there["workdir"] == here["workdir"]
    assert there["num_nodes"] == here["num_nodes"]
    ours = {name: value for name, value in here["envs"].items() if name != "HOLDFAST_TIDY"}
    assert ours.items() <= there["envs"].items()


def test_torchrun_commands_start_script_with_same_arguments() -> None:
    spec = parse_job_file(FILE.format(infra="local")).spec

    for node in torchrun_commands(spec, render(spec).task, TorchrunRequest(hosts=["a", "b"])):
        assert node.command.rstrip().endswith(" train.py --epochs 50")


def test_every_launcher_runs_the_same_bytes(tmp_path: Path) -> None:
    """The compared files are those that each launcher ships.

    They are copied, packed for Slurm, uploaded, or left in place.
    """
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_bytes(b"print('trained')\n")

    def task(infra: str) -> dict[str, Any]:
        file = FILE.format(infra=infra).replace("/srv/same", str(work))
        return render(parse_job_file(file).spec).task

    copy_workdir(Path(task("local")["workdir"]), tmp_path / "node")
    launch = Launch(key="job-1", job_id="job", first_attempt=1, task=task("slurm"), max_failures=1)
    with tarfile.open(fileobj=io.BytesIO(batch_job.pack(launch, PLACE))) as packed:
        packed.extractall(tmp_path / "slurm", filter="data")
    upload._zip([Path(task("aws")["workdir"])], tmp_path / "files.zip", Folders(), ())
    with zipfile.ZipFile(tmp_path / "files.zip") as uploaded:
        uploaded.extractall(tmp_path / "cloud")
    spec = parse_job_file(FILE.format(infra="local").replace("/srv/same", str(work))).spec
    [by_hand] = torchrun_commands(spec, render(spec).task, TorchrunRequest(hosts=["a", "b"]))[:1]

    shipped = [next((tmp_path / name).rglob("train.py")) for name in ("node", "slurm", "cloud")]
    digests = {
        hashlib.sha256(file.read_bytes()).hexdigest() for file in [work / "train.py", *shipped]
    }
    assert len(digests) == 1
    assert by_hand.command.startswith(f"cd {work}\n")
