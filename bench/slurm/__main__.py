"""Recovery time of a Slurm job with and without Holdfast, between its signs of life.

Slurm requeues both on the same cluster, one after the other. The difference is Holdfast's preflight, probe
and script.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from contract.launcher_backends import do
from contract.slurm_launcher import SlurmBackend
from local_slurm import NotPossible, SlurmCluster, start_cluster

GOAL_S = 5.0
LIMIT_S = 180.0
NODES = 2
NOTICE_S = 30
"""Remaining time before the time limit.

Slurm checks every 30 s, and enforces it up to 30 s early.
"""
PROGRAM = """
: > "{signs}/begun.${{SLURM_RESTART_COUNT:-0}}.$SLURM_NODEID"
while : > "{signs}/alive.${{SLURM_RESTART_COUNT:-0}}.$SLURM_NODEID"; do sleep 0.1; done
"""
"""The program dies of SIGTERM at once, so that its save time is excluded."""
PLAIN = """#!/bin/bash
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
srun bash {program} &
wait
# A job that ends while Slurm takes its nodes has failed for it, and is not queued again.
sleep 1000 &
wait
"""
"""A carefully written batch script."""


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


DISRUPTIONS: Mapping[str, tuple[Callable[[SlurmCluster, str], None], str]] = {
    "power cut": (cut_power, "main"),
    "preempted": (run_urgent_job, "spot"),
    "time limit": (time_out, "main"),
    "requeued": (requeue, "main"),
}


def plain(cluster: SlurmCluster, program: Path, partition: str) -> None:
    """Submit the program as a batch job."""
    batch = program.with_name("plain.sbatch")
    batch.write_text(PLAIN.format(program=program))
    where = (f"--chdir={cluster.shared}", "--output=/dev/null", f"--partition={partition}")
    size = (f"--nodes={NODES}", "--ntasks-per-node=1", "--mem=100M")
    cluster.run("sbatch", "--requeue", f"--signal=B:USR1@{NOTICE_S}", *size, *where, str(batch))


def ours(cluster: SlurmCluster, program: Path, partition: str) -> None:
    """Submit the program as a launch, whose nodes are checked for the worker's requirements."""
    backend = SlurmBackend(cluster, cluster.new_folder())
    options = {"partition": partition, "mem": "100M"}
    block = {"sbatch_options": options, "notice_s": NOTICE_S, "packages": ["torch"]}
    run, config = f"exec bash {program}", {"slurm": block}
    do(backend.launcher.submit(backend.script_launch("bench-1", run, nodes=NODES, config=config)))


def away_s(
    cluster: SlurmCluster, disruption: str, start: Callable[[SlurmCluster, Path, str], None]
) -> float:
    """Seconds during which the program did not run on all of its nodes."""
    disrupt, partition = DISRUPTIONS[disruption]
    signs = cluster.new_folder()
    program = signs / "program"
    program.write_text(PROGRAM.format(signs=signs))
    start(cluster, program, partition)
    _wait(lambda: len(_signs(signs, "alive.0")) == NODES)
    disrupt(cluster, cluster.run("squeue", "-h", "-t", "R", "-o", "%A"))
    _wait(lambda: len(_signs(signs, "begun.1")) == NODES)
    # Of the node that Slurm reported last: the detection of a dead node takes Slurm a varying time.
    taken_s = max(_signs(signs, "begun.1")) - max(_signs(signs, "alive.0"))
    cluster.settle()
    return taken_s


def _signs(signs: Path, kind: str) -> list[float]:
    """The times of each node's signs of life."""
    return [path.stat().st_mtime for path in signs.glob(f"{kind}.*")]


def _wait(true: Callable[[], bool]) -> None:
    deadline_s, pause = time.monotonic() + LIMIT_S, threading.Event()
    while not true():
        if time.monotonic() > deadline_s:
            raise SystemExit("it never came back")
        pause.wait(0.05)


def main() -> None:
    """Print the table and check the goal."""
    parser = argparse.ArgumentParser(prog="make bench-slurm", description=__doc__)
    parser.add_argument(
        "--times", type=int, default=3, help="number of runs; the median is printed"
    )
    parser.add_argument("--only", choices=DISRUPTIONS, help="one of them alone")
    arguments = parser.parse_args()
    late = []
    try:
        with start_cluster() as cluster:
            print(f"{'':<12}{'Slurm':>9}{'Holdfast':>10}{'beyond':>9}")
            for disruption in [arguments.only] if arguments.only else DISRUPTIONS:
                slurms, mine = (
                    statistics.median(
                        away_s(cluster, disruption, start) for _ in range(arguments.times)
                    )
                    for start in (plain, ours)
                )
                late += [disruption] if mine - slurms > GOAL_S else []
                print(
                    f"{disruption:<12}{slurms:>7.1f} s{mine:>8.1f} s{mine - slurms:>7.1f} s",
                    flush=True,
                )
    except NotPossible as reason:
        sys.exit(str(reason))
    sys.exit(f"more than {GOAL_S:.0f} s beyond Slurm: {', '.join(late)}" if late else None)


if __name__ == "__main__":
    main()
