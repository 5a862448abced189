"""A program on several nodes of a real Slurm that loses them, and when it runs on all of its nodes again.

Slurm requeues it in any case. It is started as a plain batch job, or as a launch of Holdfast, on the same cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contract.launcher_backends import do
from contract.slurm_launcher import SlurmBackend
from local_slurm import SlurmCluster

LIMIT_S: Final = 180.0
"""Time for a start, and for a recovery.
A lower value gives up on a busy machine; a higher value waits for a job that never returns."""
NOTICE_S: Final = 30
"""Remaining time before the time limit.

Slurm checks every 30 s, and enforces it up to 30 s early.
"""
PROGRAM: Final = """
: > "{signs}/begun.${{SLURM_RESTART_COUNT:-0}}.$SLURM_NODEID"
while : > "{signs}/alive.${{SLURM_RESTART_COUNT:-0}}.$SLURM_NODEID"; do sleep 0.1; done
"""
"""The program dies of SIGTERM at once, so that its save time is excluded."""
PLAIN: Final = """#!/bin/bash
: > "{signs}/placed.${{SLURM_RESTART_COUNT:-0}}"
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
srun bash {program} &
wait
# A job that ends while Slurm takes its nodes has failed for it, and is not queued again.
sleep 1000 &
wait
"""
"""A carefully written batch script."""
KEY: Final = "bench-1"


@dataclass(frozen=True, slots=True)
class Requeue:
    """Times of one disruption, in seconds since the epoch."""

    disrupted_s: float
    """When the nodes were disrupted."""
    left_s: float
    """The last sign of life on the former nodes. Slurm notices a dead node after a varying time, and ends the program on the others."""
    placed_s: float
    """When the batch script began on the next nodes."""
    begun_s: float
    """When the program ran on all of them."""

    @property
    def away_s(self) -> float:
        """Seconds during which the program did not run on all of its nodes, without those until Slurm noticed."""
        return self.begun_s - self.left_s


class NeverBack(Exception):
    """The program did not run within `LIMIT_S`."""


Start = Callable[[SlurmCluster, Path, str, int], Path]
"""Starts a program on nodes of a partition; returns the file that its batch script writes when it begins the second time."""


def cut_power(cluster: SlurmCluster, job: str) -> None:
    """Cut the power of a node."""
    nodes = cluster.run("squeue", "-h", "-j", job, "-o", "%N")
    cluster.cut(cluster.run("scontrol", "show", "hostnames", nodes).split()[-1])


def run_urgent_job(cluster: SlurmCluster, job: str) -> None:
    """Run a job of higher priority on three of four nodes for a moment."""
    del job
    options = (
        "--partition=urgent",
        "--nodes=3",
        "--exclusive",
        "--chdir=/tmp",
        "--output=/dev/null",
    )
    cluster.run("sbatch", *options, "--wrap=sleep 1")


def time_out(cluster: SlurmCluster, job: str) -> None:
    """Shorten the time limit, and extend it once the job is requeued."""
    cluster.run("scontrol", "update", f"job={job}", "TimeLimit=1")
    _wait(lambda: "JobState=RUNNING" not in cluster.run("scontrol", "-o", "show", "job", job))
    cluster.run("scontrol", "update", f"job={job}", "TimeLimit=10")


def requeue(cluster: SlurmCluster, job: str) -> None:
    """Requeue the job as an operator."""
    cluster.run("scontrol", "requeue", job)


POWER_CUT: Final = "power cut"
DISRUPTIONS: Final[Mapping[str, tuple[Callable[[SlurmCluster, str], None], str]]] = {
    POWER_CUT: (cut_power, "main"),
    "preempted": (run_urgent_job, "spot"),
    "time limit": (time_out, "main"),
    "requeued": (requeue, "main"),
}
"""What happens to the nodes, and the partition of the program."""


def plain(cluster: SlurmCluster, program: Path, partition: str, nodes: int) -> Path:
    """Submit the program as a batch job."""
    signs = program.parent
    batch = program.with_name("plain.sbatch")
    batch.write_text(PLAIN.format(program=program, signs=signs))
    where = (f"--chdir={cluster.shared}", "--output=/dev/null", f"--partition={partition}")
    size = (f"--nodes={nodes}", "--ntasks-per-node=1", "--mem=100M")
    cluster.run("sbatch", "--requeue", f"--signal=B:USR1@{NOTICE_S}", *size, *where, str(batch))
    return signs / "placed.1"


def ours(cluster: SlurmCluster, program: Path, partition: str, nodes: int) -> Path:
    """Submit the program as a launch, whose nodes are checked for the worker's requirements."""
    backend = SlurmBackend(cluster, cluster.new_folder())
    options = {"partition": partition, "mem": "100M"}
    block = {"sbatch_options": options, "notice_s": NOTICE_S, "packages": ["torch"]}
    run, config = f"exec bash {program}", {"slurm": block}
    do(backend.launcher.submit(backend.script_launch(KEY, run, nodes=nodes, config=config)))
    return backend.folder(KEY) / "facts" / "placed.2"


def measure(cluster: SlurmCluster, disruption: str, start: Start, nodes: int) -> Requeue:
    """Disrupt a program that runs on this number of nodes, and wait until it runs on all of its nodes again."""
    disrupt, partition = DISRUPTIONS[disruption]
    signs = cluster.new_folder()
    program = signs / "program"
    program.write_text(PROGRAM.format(signs=signs))
    placed = start(cluster, program, partition, nodes)
    _wait(lambda: len(_signs(signs, "alive.0")) == nodes)
    disrupted_s = time.time()
    disrupt(cluster, cluster.run("squeue", "-h", "-t", "R", "-o", "%A"))
    _wait(lambda: len(_signs(signs, "begun.1")) == nodes)
    found = Requeue(
        disrupted_s,
        max(_signs(signs, "alive.0")),
        placed.stat().st_mtime,
        max(_signs(signs, "begun.1")),
    )
    cluster.settle()
    return found


def _signs(signs: Path, kind: str) -> list[float]:
    """The times of each node's signs of life."""
    return [path.stat().st_mtime for path in signs.glob(f"{kind}.*")]


def _wait(true: Callable[[], bool]) -> None:
    deadline_s, pause = time.monotonic() + LIMIT_S, threading.Event()
    while not true():
        if time.monotonic() > deadline_s:
            raise NeverBack("it never came back")
        pause.wait(0.05)
