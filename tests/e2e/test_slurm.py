"""A real Slurm job loses nodes in three ways, is reached on its nodes, and ends with identical weights."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from local_slurm import SlurmCluster
from support.held_example import held_example, is_held, release
from support.live_service import EXAMPLE, Service
from support.user_terminal import UserTerminal

STEPS = 24
HELD_AT = 10
"""Step in which programs are held until their test has acted, or until a notice: the only checkpoint is of step 6, and is complete."""
DEGRADED_AT = 18
"""Step in which elastic jobs are held again, until their test has seen the missing node."""


class LoginNodeService(Service):
    """A service on the login node, which all nodes reach."""

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

    def submit_held(self, name: str, partition: str, nodes: Any = 2, infra: str = "") -> str:
        """Submit a job, and wait until it is held at `HELD_AT` and has its checkpoint."""
        example = held_example(
            self.folder / name,
            first=HELD_AT,
            last=HELD_AT,
            again=DEGRADED_AT if isinstance(nodes, dict) else -1,
            until_notice=True,
        )
        job = self.submit_example(name, partition, nodes, infra, example)
        # A notice before that step would save an earlier one.
        self.wait(lambda: is_held(self.folder / name, HELD_AT), f"{job} is held")
        self.wait_for_checkpoint(job)
        return job

    def release(self, name: str, step: int | None = None) -> None:
        """Let a held job continue after a step; None: after all."""
        release(self.folder / name, step)

    def submit_example(
        self,
        name: str,
        partition: str,
        nodes: Any = 2,
        infra: str = "",
        example: Path = EXAMPLE,
    ) -> str:
        return self.submit(
            name=name,
            num_nodes=nodes,
            workdir=str(example),
            resources={"infra": infra or f"slurm/stand/{partition}"},
            run=f"holdfast-worker run train.py --steps {STEPS}",
            envs={"OMP_NUM_THREADS": "1"},
            config={"slurm": {"sbatch_options": {"mem": "1500M"}, "notice_s": 60}},
            holdfast={
                "checkpoint": {"store": f"file://{self.folder}/store", "every": "6 steps"},
            },
        )

    def _log(self) -> str:
        """What Slurm knows, and the end of the service's log."""
        queue = self.cluster.run("squeue", "--long")
        return f"{queue}\n{self.cluster.run('sinfo', '--long', '-N')}\n{super()._log()}"

    def weights(self, job: str) -> str:
        """Digest of the weights in the checkpoint of the last step."""
        result = self.json("checkpoints", job)
        (last,) = [item for item in result if item["step"] == STEPS]
        digest: str = last["weights_sha256"]
        return digest

    def restored_at(self, job: str) -> int:
        """The first step of the second attempt."""
        began = [e["body"] for e in self.json("events", job) if e["kind"] == "TrainingStarted"]
        step: int = began[1]["step"]
        return step

    def slurm_job(self, job: str) -> str:
        facts = self.shared / "launches" / f"{job}-1" / "facts"
        return (facts / "submitted.1").read_text().strip().removeprefix("job=")

    def nodes(self, job: str) -> list[str]:
        """The nodes of the first placement, in the order of their ranks."""
        placed = self.shared / "launches" / f"{job}-1" / "facts" / "placed.1"
        lines = placed.read_text().splitlines()
        return (
            next(line for line in lines if line.startswith("nodes=")).removeprefix("nodes=").split()
        )

    def processes(self, job: str, node: int) -> list[psutil.Process]:
        """The processes of a node of a job, which runs."""
        names = {"HOLDFAST_JOB": job, "SKYPILOT_NODE_RANK": str(node)}
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if names.items() <= process.environ().items():
                    found.append(process)
        assert found, f"node {node} of {job} does not run"
        return found

    def wait_for_loss(self, processes: list[psutil.Process]) -> None:
        """Wait until processes of a node have ended, so that the others meet its loss in their next step."""
        psutil.wait_procs(processes, timeout=240)
        assert not any(process.is_running() for process in processes)

    def wait_for_checkpoint(self, job: str) -> None:
        """Wait for the first checkpoint in the store, since the command line is slower."""
        commits = self.folder / "store" / job / "commits"
        self.wait(lambda: any(commits.glob("*.json")), f"{job} has saved")


@pytest.fixture(scope="module")
def service(one_slurm: SlurmCluster) -> Iterator[LoginNodeService]:
    service = LoginNodeService(one_slurm)
    service.start()
    yield service
    service.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def uninterrupted_weights(service: LoginNodeService) -> str:
    """Weights of an uninterrupted run."""
    job = service.submit_example("left-alone", "main")
    assert service.ended(job)["state"] == "succeeded", service.cli("logs", job).stdout
    return service.weights(job)


def cut_power(service: LoginNodeService, job: str) -> None:
    service.cluster.cut(service.nodes(job)[-1])


def submit_urgent_job(service: LoginNodeService, job: str) -> None:
    out = service.folder / "urgent.out"
    arguments = ("--partition=urgent", "--nodes=3", "--exclusive", f"--chdir={service.folder}")
    service.cluster.run("sbatch", *arguments, f"--output={out}", "--wrap=sleep 3")


def reach_time_limit(service: LoginNodeService, job: str) -> None:
    """Shorten the time limit to one or two minutes from now. Slurm has limits in minutes, and checks them twice a minute."""
    number = service.slurm_job(job)
    shown = service.cluster.run("scontrol", "-o", "show", "job", number)
    (ran,) = [word for word in shown.split() if word.startswith("RunTime=")]
    hours, minutes, _ = ran.removeprefix("RunTime=").split(":")
    limit = 60 * int(hours) + int(minutes) + 2
    service.cluster.run("scontrol", "update", f"JobId={number}", f"TimeLimit={limit}")
    left = service.shared / "launches" / f"{job}-1" / "facts" / "left.1"
    service.wait(left.exists, f"{job} has left")
    service.cluster.run("scontrol", "update", f"JobId={number}", "TimeLimit=10")


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("lose_capacity", "partition", "cause", "resumed_at"),
    [
        (cut_power, "main", "node_failed", 6),
        (submit_urgent_job, "spot", "preempted", HELD_AT + 1),
        (reach_time_limit, "main", "launcher_restarted", HELD_AT + 1),
    ],
    ids=["power cut", "preempted", "time limit"],
)
def test_capacity_loss_leaves_the_final_weights_unchanged(
    service: LoginNodeService,
    slurm: SlurmCluster,
    uninterrupted_weights: str,
    lose_capacity: Callable[[LoginNodeService, str], None],
    partition: str,
    cause: str,
    resumed_at: int,
) -> None:
    """A notice ends the hold of the program; without one, its next attempt is not held."""
    name = lose_capacity.__name__
    job = service.submit_held(name, partition)

    lose_capacity(service, job)
    if resumed_at < HELD_AT:
        service.release(name)
    done = service.ended(job)

    events = service.json("events", job)
    lost = [event["body"]["cause"] for event in events if event["kind"] == "CapacityLost"]
    assert done["state"] == "succeeded", service.cli("logs", job).stdout
    assert lost == [cause]
    assert service.restored_at(job) == resumed_at
    assert service.weights(job) == uninterrupted_weights


def fail_second_node(service: LoginNodeService, job: str) -> None:
    node = service.nodes(job)[1]
    service.cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")


def cut_power_of_second_node(service: LoginNodeService, job: str) -> None:
    service.cluster.cut(service.nodes(job)[1])


@pytest.fixture(scope="module")
def weights_of_three_nodes(service: LoginNodeService) -> str:
    """Weights of an uninterrupted run on three nodes."""
    job = service.submit_example("left-alone-on-three", "main", nodes=3)
    assert service.ended(job)["state"] == "succeeded", service.cli("logs", job).stdout
    return service.weights(job)


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("lose_node", [fail_second_node, cut_power_of_second_node])
def test_elastic_job_loses_no_step_with_its_node(
    service: LoginNodeService,
    slurm: SlurmCluster,
    weights_of_three_nodes: str,
    lose_node: Callable[[LoginNodeService, str], None],
) -> None:
    name = f"elastic-{lose_node.__name__}"
    job = service.submit_held(name, "main", {"min": 2, "max": 3})
    processes = service.processes(job, 1)

    lose_node(service, job)
    service.wait_for_loss(processes)
    service.release(name, HELD_AT)
    service.until(job, lambda job: job["state"] == "degraded")
    service.release(name)
    done = service.ended(job)

    events = service.json("events", job)
    bodies = {event["kind"]: event["body"] for event in events}
    assert done["state"] == "succeeded", service.cli("logs", job).stdout
    assert "CapacityLost" not in bodies, service.cli("logs", job).stdout
    lost = bodies["NodeLost"]
    assert (lost["node"], lost["nodes"], lost["cause"]) == (1, 2, "node_failed")
    assert bodies["RanksReplaced"]["hosted_nodes"] == [1]
    assert [log["node"] for log in service.json("logs", job) if log["rank"] == 1] == [1, 2]
    assert service.json("bill", job)["lost_steps"] == 0
    assert service.weights(job) == weights_of_three_nodes


@pytest.mark.full
@pytest.mark.timeout(400)
def test_drill_of_all_nodes_loses_no_step(
    service: LoginNodeService, slurm: SlurmCluster, uninterrupted_weights: str
) -> None:
    job = service.submit_held("drill", "main")

    accepted = service.cli("preempt", job, "--notice", "120s")
    done = service.ended(job)

    events = service.json("events", job)
    (lost,) = [event["body"] for event in events if event["kind"] == "CapacityLost"]
    assert accepted.returncode == 0, accepted.stderr
    assert done["state"] == "succeeded", service.cli("logs", job).stdout
    assert (lost["cause"], lost["drill"]) == ("preempted", True), "a notice proves it"
    assert (done["preemptions"], done["drills"]) == (1, 1)
    assert service.json("bill", job)["lost_steps"] == 0
    assert service.weights(job) == uninterrupted_weights


@pytest.mark.full
@pytest.mark.timeout(400)
def test_elastic_job_loses_no_step_in_a_drill(
    service: LoginNodeService, slurm: SlurmCluster, weights_of_three_nodes: str
) -> None:
    job = service.submit_held("elastic-drill", "main", {"min": 2, "max": 3})
    processes = service.processes(job, 2)

    accepted = service.cli("preempt", job, "--node", "2", "--no-notice")
    assert accepted.returncode == 0, accepted.stderr
    service.wait_for_loss(processes)
    service.release("elastic-drill", HELD_AT)
    service.until(job, lambda job: job["state"] == "degraded")
    service.release("elastic-drill")
    done = service.ended(job)

    bodies = {event["kind"]: event["body"] for event in service.json("events", job)}
    assert done["state"] == "succeeded", service.cli("logs", job).stdout
    assert "CapacityLost" not in bodies, service.cli("logs", job).stdout
    assert (bodies["NodeLost"]["node"], bodies["NodeLost"]["drill"]) == (2, True)
    assert service.json("bill", job)["lost_steps"] == 0
    assert service.weights(job) == weights_of_three_nodes


@pytest.mark.full
@pytest.mark.timeout(400)
def test_local_job_continues_on_slurm_after_a_pause(
    service: LoginNodeService, uninterrupted_weights: str
) -> None:
    job = service.submit_held("moved", "main", infra="local")
    assert service.cli("pause", job).returncode == 0
    service.until(job, lambda shown: shown["state"] == "paused")

    to_slurm = ("resume", job, "--infra", "slurm/stand/main")
    alone = service.cli(*to_slurm)
    assert service.cli(*to_slurm, "--force").returncode == 0
    done = service.ended(job)

    assert alone.returncode == 6
    assert "which nodes of Slurm may not see; if it is the same folder there" in " ".join(
        alone.stderr.split()
    )
    assert (done["state"], done["engine"], done["lost_steps"]) == ("succeeded", "slurm", 0)
    assert service.weights(job) == uninterrupted_weights
    first = service.cli("logs", job, "--attempt", "1")
    assert first.returncode == 0, first.stderr
    places = [e["body"]["zone"] for e in service.json("events", job) if e["kind"] == "NodesReady"]
    assert len(places) == 2
    assert places[0] != places[1]


@pytest.mark.full
@pytest.mark.timeout(400)
def test_nodes_of_a_slurm_job_are_reached(
    service: LoginNodeService, uninterrupted_weights: str
) -> None:
    """Commands come from outside of the job's allocation, and need no ssh to its nodes."""
    job = service.submit_held("reached", "main")
    where = "echo $SLURM_JOB_ID on $SLURMD_NODENAME; echo $SKYPILOT_NODE_RANK >&2; exit 3"

    found = [
        service.cli("exec", job, "--node", str(node), "--", "sh", "-c", where) for node in (0, 1)
    ]
    with UserTerminal(service, "shell", job, "--node", "1", "--", "sh") as user:
        user.type("echo at-$SLURMD_NODENAME-$((6 * 7))\r")
        node = user.shows(r"at-(\w+)-42")
        user.type("exit 9\r")
        left = user.exit_code()
    service.release("reached")
    done = service.ended(job)

    number, nodes = service.slurm_job(job), service.nodes(job)
    assert [one.returncode for one in found] == [3, 3], found
    assert [one.stdout.strip() for one in found] == [f"{number} on {each}" for each in nodes]
    assert [one.stderr.strip() for one in found] == ["0", "1"]
    assert (node, left) == (nodes[1], 9)
    assert done["state"] == "succeeded", service.cli("logs", job).stdout
    assert service.weights(job) == uninterrupted_weights
