"""Nodes of a real Slurm are taken from a real job, in three ways; it ends bit for bit as one that was left alone."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator

import pytest
from local_slurm import SlurmCluster
from support.live_service import EXAMPLE, Service

STEPS = 24


class OnLoginNode(Service):
    """A service on the login node, where all nodes reach it."""

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__(cluster.new_folder())
        self.cluster = cluster
        self.reach = cluster.network
        self.shared = self.folder / "cluster"
        self.environment |= {
            "HOLDFAST_PUBLIC_URL": f"http://{cluster.plan.address('login')}:{self.port}",
            "HOLDFAST_SLURM_FOLDER": str(self.shared),
            "HOLDFAST_SLURM_PROGRAMS": str(cluster.programs),
            "HOLDFAST_SLURM_CLUSTER": "stand",
            "HOLDFAST_SLURM_PYTHON": sys.executable,
            "HOLDFAST_SLURM_LOOK_EVERY_S": "0.5",
        }
        self.words = ("serve", "--host", "0.0.0.0")
        self.environment["HOLDFAST_TRUST_LOOPBACK"] = "true"

    def submit_example(self, name: str, partition: str, step_s: float = 0.0) -> str:
        return self.submit(
            name=name,
            num_nodes=2,
            workdir=str(EXAMPLE),
            resources={"infra": f"slurm/stand/{partition}"},
            run=f"holdfast-worker run train.py --steps {STEPS} --step-seconds {step_s}",
            envs={"OMP_NUM_THREADS": "1"},
            config={"slurm": {"sbatch_options": {"mem": "1500M"}, "notice_s": 60}},
            holdfast={
                "checkpoint": {"store": f"file://{self.folder}/store", "every": "6 steps"},
            },
        )

    def weights(self, job: str) -> str:
        """Digest of the weights in the checkpoint of the last step."""
        result = self.json("checkpoints", job)
        (last,) = [item for item in result if item["step"] == STEPS]
        digest: str = last["weights_sha256"]
        return digest

    def restored_at(self, job: str) -> int:
        """The step at which its second attempt began."""
        began = [e["body"] for e in self.json("events", job) if e["kind"] == "TrainingStarted"]
        step: int = began[1]["step"]
        return step

    def slurm_job(self, job: str) -> str:
        facts = self.shared / "launches" / f"{job}-1" / "facts"
        return (facts / "submitted.1").read_text().strip().removeprefix("job=")

    def nodes(self, job: str) -> list[str]:
        """The nodes of its first placement, in the order of their ranks."""
        placed = self.shared / "launches" / f"{job}-1" / "facts" / "placed.1"
        lines = placed.read_text().splitlines()
        return (
            next(line for line in lines if line.startswith("nodes=")).removeprefix("nodes=").split()
        )

    def saved_once(self, job: str) -> None:
        """Wait for its first checkpoint, by what lies in the store: asking the command line takes as long as some steps."""
        commits = self.folder / "store" / job / "commits"
        self.wait(lambda: any(commits.glob("*.json")), f"{job} has saved")


@pytest.fixture(scope="module")
def service(one_slurm: SlurmCluster) -> Iterator[OnLoginNode]:
    service = OnLoginNode(one_slurm)
    service.start()
    yield service
    service.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def left_alone(service: OnLoginNode) -> str:
    """What an uninterrupted run ends with."""
    job = service.submit_example("left-alone", "main")
    assert service.ended(job)["state"] == "succeeded", service.cli("logs", job).stdout
    return service.weights(job)


def cut_the_power(service: OnLoginNode, job: str) -> None:
    service.cluster.cut(service.nodes(job)[-1])


def come_urgently(service: OnLoginNode, job: str) -> None:
    out = service.folder / "urgent.out"
    words = ("--partition=urgent", "--nodes=3", "--exclusive", f"--chdir={service.folder}")
    service.cluster.run("sbatch", *words, f"--output={out}", "--wrap=sleep 3")


def bring_the_limit_near(service: OnLoginNode, job: str) -> None:
    """Slurm knows whole minutes, and looks at limits twice in one."""
    number = service.slurm_job(job)
    service.cluster.run("scontrol", "update", f"JobId={number}", "TimeLimit=1")
    left = service.shared / "launches" / f"{job}-1" / "facts" / "left.1"
    service.wait(left.exists, f"{job} has left")
    service.cluster.run("scontrol", "update", f"JobId={number}", "TimeLimit=10")


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("befall", "partition", "step_s", "cause"),
    [
        (cut_the_power, "main", 0.5, "node_failed"),
        (come_urgently, "spot", 0.5, "preempted"),
        (bring_the_limit_near, "main", 2.5, "launcher_restarted"),
    ],
    ids=["power cut", "preempted", "time limit"],
)
def test_capacity_loss_leaves_the_final_weights_unchanged(
    service: OnLoginNode,
    slurm: SlurmCluster,
    left_alone: str,
    befall: Callable[[OnLoginNode, str], None],
    partition: str,
    step_s: float,
    cause: str,
) -> None:
    job = service.submit_example(befall.__name__, partition, step_s)
    service.saved_once(job)

    befall(service, job)
    done = service.ended(job)

    events = service.json("events", job)
    lost = [event["body"]["cause"] for event in events if event["kind"] == "CapacityLost"]
    assert done["state"] == "succeeded", service.cli("logs", job).stdout
    assert lost == [cause]
    assert service.restored_at(job) >= 6, "it has gone on, and did not begin anew"
    assert service.weights(job) == left_alone
