"""Two services with separate home directories, one PostgreSQL and a real Slurm: one is killed, nothing is lost."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_slurm import SlurmCluster
from support.live_service import EXAMPLE, Service
from support.postgres import Cluster
from support.user_terminal import UserTerminal

STEPS = 12
SECRET = "0123456789abcdef" * 4


class Replica(Service):
    """A service on the login node whose home directory only it can see."""

    def __init__(self, folder: Path, slurm: SlurmCluster, database_url: str, shared: Path) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.reach = slurm.network
        self.words = ("serve", "--host", "0.0.0.0")
        secret = shared / "secret"
        secret.write_text(SECRET)
        self.environment |= {
            "HOLDFAST_DATABASE_URL": database_url,
            "HOLDFAST_SHARES_HOME": "false",
            "HOLDFAST_SECRET_FILE": str(secret),
            "HOLDFAST_PUBLIC_URL": f"http://{slurm.plan.address('login')}:{self.port}",
            "HOLDFAST_SLURM_FOLDER": str(shared / "cluster"),
            "HOLDFAST_SLURM_PROGRAMS": str(slurm.programs),
            "HOLDFAST_SLURM_CLUSTER": "stand",
            "HOLDFAST_SLURM_PYTHON": sys.executable,
            "HOLDFAST_SLURM_LOOK_EVERY_S": "0.5",
            "HOLDFAST_REPLICAS_LEASE_S": "5",
        }

    def submit_upload(self, name: str, store: Path, steps: int = STEPS) -> str:
        """Submit the example with its code uploaded to this replica."""
        file = self.folder / "job.yaml"
        task = {
            "name": name,
            "workdir": str(EXAMPLE),
            "resources": {"infra": "slurm/stand/main"},
            "run": f"holdfast-worker run train.py --steps {steps} --step-seconds 0.5",
            "envs": {"OMP_NUM_THREADS": "1"},
            "config": {"slurm": {"sbatch_options": {"mem": "1500M"}}},
            "holdfast": {"checkpoint": {"store": f"file://{store}", "every": "4 steps"}},
        }
        file.write_text(json.dumps(task))
        job_id: str = self.json("submit", "--upload", "--force", str(file))["id"]
        return job_id


@pytest.fixture
def replicas(one_slurm: SlurmCluster, cluster: Cluster) -> Iterator[list[Replica]]:
    shared = one_slurm.new_folder()
    url = cluster.new_database()
    both = [Replica(shared / name, one_slurm, url, shared) for name in ("a", "b")]
    yield both
    for one in both:
        if one.process:
            one.end(signal.SIGTERM)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_kill_of_a_replica_loses_no_job(
    replicas: list[Replica], slurm: SlurmCluster, tmp_path: Path
) -> None:
    first, second = replicas
    first.start()
    second.start()
    token = (first.home / "token").read_text()
    store = first.folder.parent / "store"

    jobs = [one.submit_upload(f"job-{n}", store) for n in (1, 2) for one in replicas]
    first.end(signal.SIGKILL)
    done = [second.ended(job) for job in jobs]

    assert token == (second.home / "token").read_text(), "both derive the owner's token"
    assert [job["state"] for job in done] == ["succeeded"] * 4, second.cli("logs", jobs[0]).stdout
    for job in jobs:
        kinds = Counter(event["kind"] for event in second.json("events", job))
        assert (kinds["LaunchRequested"], kinds["Finished"]) == (1, 1)
        last = [item for item in second.json("checkpoints", job) if item["step"] == STEPS]
        assert len(last) == 1

    # The first one may have launched all jobs before its end.
    copy = second.json("clone", jobs[0], "--force")["id"]
    assert second.ended(copy)["state"] == "succeeded", second.cli("logs", copy).stdout
    assert [*(second.home / "code").glob("*/trees/*")], "its code comes from the database"


@pytest.mark.full
@pytest.mark.timeout(400)
def test_nodes_are_reached_through_either_replica(
    replicas: list[Replica], slurm: SlurmCluster
) -> None:
    """The wrapper of a node is connected to the replica that launched it, so that one of these is another."""
    for one in replicas:
        one.start()
    first, second = replicas
    job = first.submit_upload("reached", first.folder.parent / "store", steps=900)
    second.until(job, lambda job: job["state"] == "training")

    commands = [one.cli("exec", job, "--", "sh", "-c", "echo $((6 * 7))") for one in replicas]
    left = []
    for one in replicas:
        with UserTerminal(one, "shell", job, "--", "sh") as user:
            user.type("echo at-$SLURMD_NODENAME-$((6 * 7))\r")
            user.shows(r"at-\w+-42")
            user.type("exit 9\r")
            left.append(user.exit_code())
    cancelled = second.cli("cancel", job)

    assert [(one.returncode, one.stdout) for one in commands] == [(0, "42\n")] * 2, commands
    assert left == [9, 9]
    assert cancelled.returncode == 0, cancelled.stderr
    assert first.ended(job)["state"] == "cancelled"


@pytest.mark.full
@pytest.mark.timeout(400)
def test_local_job_is_refused_without_a_shared_home(
    one_slurm: SlurmCluster, replicas: list[Replica]
) -> None:
    (one, _) = replicas
    one.start()
    file = one.folder / "local.yaml"
    file.write_text(json.dumps({"resources": {"infra": "local"}, "run": "true"}))

    answer = one.cli("submit", "--force", str(file))

    assert answer.returncode == 2
    assert "HOLDFAST_SHARES_HOME" in answer.stderr
