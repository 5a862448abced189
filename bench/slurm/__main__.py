"""From when Slurm takes the nodes for lost to the first word of the program on new ones: a launch of Holdfast beside a plain batch job.

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

from contract.slurm_world import SlurmWorld
from contract.worlds import do
from slurmstand import NotPossible, Stand, raised

GOAL_S = 5.0
LIMIT_S = 180.0
PROGRAM = "date +%s.%N >> {starts}; exec sleep 1000"


def cut(stand: Stand, nodes: list[str]) -> None:
    """The power of a node fails."""
    stand.cut(nodes[-1])


def crowd_out(stand: Stand, nodes: list[str]) -> None:
    """A job that matters more takes three nodes of four, for a moment."""
    del nodes
    words = ("--partition=urgent", "--nodes=3", "--exclusive", "--chdir=/tmp", "--output=/dev/null")
    stand.run("sbatch", *words, "--wrap=sleep 1")


def requeue(stand: Stand, nodes: list[str]) -> None:
    """An operator has it queued again."""
    del nodes
    job = stand.run("squeue", "-h", "-t", "R", "-o", "%A").split()[0]
    stand.run("scontrol", "requeue", job)


BLOWS: Mapping[str, tuple[Callable[[Stand, list[str]], None], str]] = {
    "power cut": (cut, "main"),
    "preempted": (crowd_out, "spot"),
    "requeued": (requeue, "main"),
}


def plain(stand: Stand, starts: Path, partition: str) -> None:
    """What people write themselves."""
    program = PROGRAM.format(starts=starts)
    where = (f"--chdir={stand.shared}", "--output=/dev/null", f"--partition={partition}")
    stand.run(
        *("sbatch", "--requeue", "--nodes=2", "--ntasks-per-node=1", "--mem=100M", *where),
        f"--wrap=srun bash -c '{program}'",
    )


def ours(stand: Stand, starts: Path, partition: str) -> None:
    """The same program as a launch."""
    world = SlurmWorld(stand, stand.new_folder())
    order = world.order("bench-1", PROGRAM.format(starts=starts), {"partition": partition}, nodes=2)
    do(world.launcher.submit(order))


def recovery_s(stand: Stand, blow: str, start: Callable[[Stand, Path, str], None]) -> float:
    """Seconds from when Slurm has noticed to the program on both nodes again."""
    befall, partition = BLOWS[blow]
    starts = stand.new_folder() / "starts"
    starts.touch()
    start(stand, starts, partition)
    _wait(lambda: len(starts.read_text().split()) == 2)
    job, nodes = stand.run("squeue", "-h", "-t", "R", "-o", "%A %N").split()[:2]
    befall(stand, stand.run("scontrol", "show", "hostnames", nodes).split())
    # From here, as when Slurm looks for a dead node is its own affair, and another moment each time.
    _wait(lambda: "JobState=RUNNING" not in stand.run("scontrol", "-o", "show", "job", job))
    begun_s = time.monotonic()
    _wait(lambda: len(starts.read_text().split()) == 4)
    taken_s = time.monotonic() - begun_s
    stand.settle()
    return taken_s


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
        with raised() as stand:
            print(f"{'':<12}{'Slurm':>9}{'Holdfast':>10}{'beyond':>9}")
            for blow in [asked.only] if asked.only else BLOWS:
                slurms, mine = (
                    statistics.median(recovery_s(stand, blow, start) for _ in range(asked.times))
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
