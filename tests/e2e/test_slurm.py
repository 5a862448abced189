"""Nodes of a real Slurm are taken from a real job, in three ways; it ends bit for bit as one that was left alone."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from premises import EXAMPLE, Service
from slurmstand import Stand

STEPS = 40


class OnLoginNode(Service):
    """A service on the login node, where all nodes reach it."""

    def __init__(self, stand: Stand) -> None:
        super().__init__(stand.new_folder())
        self.stand = stand
        self.reach = stand.network
        self.shared = self.folder / "cluster"
        self.environment |= {
            "HOLDFAST_PUBLIC_URL": f"http://{stand.plan.address('login')}:{self.port}",
            "HOLDFAST_SLURM_FOLDER": str(self.shared),
            "HOLDFAST_SLURM_PROGRAMS": str(stand.programs),
            "HOLDFAST_SLURM_CLUSTER": "stand",
            "HOLDFAST_SLURM_PYTHON": sys.executable,
            "HOLDFAST_SLURM_LOOK_EVERY_S": "0.5",
        }
        self.words = ("serve", "--host", "0.0.0.0")

    def submit_example(self, name: str, partition: str, **options: Any) -> str:
        return self.submit(
            name=name,
            num_nodes=2,
            workdir=str(EXAMPLE),
            resources={"infra": f"slurm/stand/{partition}"},
            run=f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.25",
            envs={"OMP_NUM_THREADS": "1"},
            config={"slurm": {"sbatch_options": {"mem": "1500M", **options}, "notice_s": 60}},
            holdfast={
                "checkpoint": {"store": f"file://{self.folder}/store", "every": "10 steps"},
            },
        )

    def weights(self, job: str) -> str:
        """Digest of the weights in the checkpoint of the last step."""
        told = self.json("checkpoints", job)
        (last,) = [item for item in told if item["step"] == STEPS]
        digest: str = last["weights_sha256"]
        return digest

    def nodes(self, job: str) -> list[str]:
        """The nodes of its first placement, in the order of their ranks."""
        placed = self.shared / "launches" / f"{job}-1" / "facts" / "placed.1"
        lines = placed.read_text().splitlines()
        return (
            next(line for line in lines if line.startswith("nodes=")).removeprefix("nodes=").split()
        )

    def at_step(self, job: str, step: int) -> dict[str, Any]:
        return self.until(job, lambda seen: (seen.get("step") or 0) >= step)


@pytest.fixture(scope="module")
def service(one_slurm: Stand) -> Iterator[OnLoginNode]:
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
    service.at_step(job, 15)
    service.stand.cut(service.nodes(job)[-1])


def come_urgently(service: OnLoginNode, job: str) -> None:
    service.at_step(job, 15)
    out = service.folder / "urgent.out"
    words = ("--partition=urgent", "--nodes=3", "--exclusive", f"--chdir={service.folder}")
    service.stand.run("sbatch", *words, f"--output={out}", "--wrap=sleep 3")


def reach_the_limit(service: OnLoginNode, job: str) -> None:
    """Its time is changed once it trains: a minute is the least that Slurm knows, and is given in whole ones."""
    service.at_step(job, 5)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("befall", "partition", "options", "cause"),
    [
        (cut_the_power, "main", {}, "node_failed"),
        (come_urgently, "spot", {}, "preempted"),
        (reach_the_limit, "main", {"time": "00:01:10"}, "launcher_restarted"),
    ],
    ids=["power cut", "preempted", "time limit"],
)
def test_whatever_takes_the_nodes_the_weights_are_those_of_a_run_that_was_left_alone(
    service: OnLoginNode,
    slurm: Stand,
    left_alone: str,
    befall: Callable[[OnLoginNode, str], None],
    partition: str,
    options: dict[str, Any],
    cause: str,
) -> None:
    job = service.submit_example(befall.__name__, partition, **options)

    befall(service, job)
    done = service.ended(job)

    events = service.json("events", job)
    lost = [event["body"]["cause"] for event in events if event["kind"] == "CapacityLost"]
    assert done["state"] == "succeeded", service.cli("logs", job).stdout
    assert lost == [cause]
    assert service.weights(job) == left_alone
