"""From the last sign of a program whose nodes are taken to its first on new ones: a launch of Holdfast beside a plain batch job.

Both are queued again by Slurm, on the same stand, one after the other. What Holdfast takes beyond is preflight, probe and its script.
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
"""Before the time limit. Slurm looks every 30 s, and gives it up to 30 s too early."""
PROGRAM = """
: > "{signs}/begun.${{SLURM_RESTART_COUNT:-0}}.$SLURM_NODEID"
while : > "{signs}/alive.${{SLURM_RESTART_COUNT:-0}}.$SLURM_NODEID"; do sleep 0.1; done
"""
"""It dies of SIGTERM at once: how long a program takes to save is its own affair."""
PLAIN = """#!/bin/bash
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
srun bash {program} &
wait
# A job that ends while Slurm takes its nodes has failed for it, and is not queued again.
sleep 1000 &
wait
"""
"""What careful people write themselves."""


def cut(cluster: SlurmCluster, job: str) -> None:
    """The power of a node fails."""
    nodes = cluster.run("squeue", "-h", "-j", job, "-o", "%N")
    cluster.cut(cluster.run("scontrol", "show", "hostnames", nodes).split()[-1])


def crowd_out(cluster: SlurmCluster, job: str) -> None:
    """A job that matters more takes three nodes of four, for a moment."""
    del job
    words = ("--partition=urgent", "--nodes=3", "--exclusive", "--chdir=/tmp", "--output=/dev/null")
    cluster.run("sbatch", *words, "--wrap=sleep 1")


def time_out(cluster: SlurmCluster, job: str) -> None:
    """Its time limit is near. Once it is queued again, it has enough."""
    cluster.run("scontrol", "update", f"job={job}", "TimeLimit=1")
    _wait(lambda: "JobState=RUNNING" not in cluster.run("scontrol", "-o", "show", "job", job))
    cluster.run("scontrol", "update", f"job={job}", "TimeLimit=10")


def requeue(cluster: SlurmCluster, job: str) -> None:
    """An operator has it queued again."""
    cluster.run("scontrol", "requeue", job)


BLOWS: Mapping[str, tuple[Callable[[SlurmCluster, str], None], str]] = {
    "power cut": (cut, "main"),
    "preempted": (crowd_out, "spot"),
    "time limit": (time_out, "main"),
    "requeued": (requeue, "main"),
}


def plain(cluster: SlurmCluster, program: Path, partition: str) -> None:
    """The program as a batch job."""
    batch = program.with_name("plain.sbatch")
    batch.write_text(PLAIN.format(program=program))
    where = (f"--chdir={cluster.shared}", "--output=/dev/null", f"--partition={partition}")
    size = (f"--nodes={NODES}", "--ntasks-per-node=1", "--mem=100M")
    cluster.run("sbatch", "--requeue", f"--signal=B:USR1@{NOTICE_S}", *size, *where, str(batch))


def ours(cluster: SlurmCluster, program: Path, partition: str) -> None:
    """The same program as a launch, whose nodes are asked for what a worker needs."""
    world = SlurmBackend(cluster, cluster.new_folder())
    options = {"partition": partition, "mem": "100M"}
    words = {"sbatch_options": options, "notice_s": NOTICE_S, "packages": ["torch"]}
    run, config = f"exec bash {program}", {"slurm": words}
    do(world.launcher.submit(world.order("bench-1", run, nodes=NODES, config=config)))


def away_s(
    cluster: SlurmCluster, blow: str, start: Callable[[SlurmCluster, Path, str], None]
) -> float:
    """Seconds in which the program did not run on all of its nodes."""
    befall, partition = BLOWS[blow]
    signs = cluster.new_folder()
    program = signs / "program"
    program.write_text(PROGRAM.format(signs=signs))
    start(cluster, program, partition)
    _wait(lambda: len(_signs(signs, "alive.0")) == NODES)
    befall(cluster, cluster.run("squeue", "-h", "-t", "R", "-o", "%A"))
    _wait(lambda: len(_signs(signs, "begun.1")) == NODES)
    # Of the node that Slurm has told last: how long it looks for a dead one is its own affair, and another time each time.
    taken_s = max(_signs(signs, "begun.1")) - max(_signs(signs, "alive.0"))
    cluster.settle()
    return taken_s


def _signs(signs: Path, kind: str) -> list[float]:
    """When each node has given one."""
    return [path.stat().st_mtime for path in signs.glob(f"{kind}.*")]


def _wait(true: Callable[[], bool]) -> None:
    deadline_s, pause = time.monotonic() + LIMIT_S, threading.Event()
    while not true():
        if time.monotonic() > deadline_s:
            raise SystemExit("it never came back")
        pause.wait(0.05)


def main() -> None:
    """The table, and whether the goal is met."""
    parser = argparse.ArgumentParser(prog="make bench-slurm", description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="how often each; the median is told")
    parser.add_argument("--only", choices=BLOWS, help="one of them alone")
    asked = parser.parse_args()
    late = []
    try:
        with start_cluster() as cluster:
            print(f"{'':<12}{'Slurm':>9}{'Holdfast':>10}{'beyond':>9}")
            for blow in [asked.only] if asked.only else BLOWS:
                slurms, mine = (
                    statistics.median(away_s(cluster, blow, start) for _ in range(asked.times))
                    for start in (plain, ours)
                )
                late += [blow] if mine - slurms > GOAL_S else []
                print(
                    f"{blow:<12}{slurms:>7.1f} s{mine:>8.1f} s{mine - slurms:>7.1f} s", flush=True
                )
    except NotPossible as reason:
        sys.exit(str(reason))
    sys.exit(f"more than {GOAL_S:.0f} s beyond Slurm: {', '.join(late)}" if late else None)


if __name__ == "__main__":
    main()
