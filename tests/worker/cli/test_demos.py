"""`holdfast-worker demo`: greetings and averages of ranks, also without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_worker.cli.torch_demos import describe_rank
from holdfast_worker.protocol.environment import Exit
from worker.support.run_driver import TIMEOUT_S

SIMULATED = """\
world_size (K) : 4
rank 0: local before = [1.0, 1.0, 1.0, 1.0] -> after mean = [2.5, 2.5, 2.5, 2.5]
rank 1: local before = [2.0, 2.0, 2.0, 2.0] -> after mean = [2.5, 2.5, 2.5, 2.5]
rank 2: local before = [3.0, 3.0, 3.0, 3.0] -> after mean = [2.5, 2.5, 2.5, 2.5]
rank 3: local before = [4.0, 4.0, 4.0, 4.0] -> after mean = [2.5, 2.5, 2.5, 2.5]
reference mean : [2.5, 2.5, 2.5, 2.5]
all workers agree : True
"""
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from holdfast_worker.__main__ import main
if __name__ == "__main__":
    main()
"""
UNDER_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
NOT_SET = (
    "RANK=not set, WORLD_SIZE=not set, LOCAL_RANK=not set, MASTER_ADDR=not set, MASTER_PORT=not set"
)


def run_python(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a Python command and return its output and exit code."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_all_reduce_demo_runs_without_torch() -> None:
    simulated = run_python("-c", WITHOUT_TORCH, "demo", "simulate")

    assert simulated.stdout == SIMULATED, simulated.stderr


def test_ranks_of_the_demo_compute_the_mean() -> None:
    averaged = run_python("-m", "holdfast_worker", "demo", "allreduce")

    assert sorted(averaged.stdout.splitlines()) == [
        f"[rank {rank}/4] averaged vector = [2.5, 2.5, 2.5, 2.5]" for rank in range(4)
    ], averaged.stderr


@pytest.mark.full
def test_ranks_of_torchrun_are_used_by_the_demo() -> None:
    averaged = run_python(*UNDER_TORCHRUN, "holdfast_worker", "demo", "allreduce")

    assert sorted(averaged.stdout.splitlines()) == [
        f"[rank {rank}/2] averaged vector = [1.5, 1.5, 1.5, 1.5]" for rank in range(2)
    ], averaged.stderr


LATE_RANK = """
import os, sys, time
from pathlib import Path
import psutil
from holdfast_worker.cli import torch_demos

folder = Path(sys.argv[1])


def part(rank, _size):
    (folder / f"{rank}.draft").write_text(str(os.getpid()))
    (folder / f"{rank}.draft").replace(folder / f"{rank}.pid")
    if rank:
        while not (folder / "0.pid").exists():
            time.sleep(0.05)
        time.sleep(1)
        first = psutil.Process(int((folder / "0.pid").read_text()))
        print(first.status() == psutil.STATUS_ZOMBIE)


torch_demos.run_ranks(part, 2)
"""


def test_ranks_end_together(tmp_path: Path) -> None:
    """Otherwise, one that ends early breaks the connections of those that are still connecting."""
    ended = run_python("-c", LATE_RANK, str(tmp_path))

    assert ended.stdout == "False\n", ended.stderr


def test_eight_ranks_greet_and_print_their_environment() -> None:
    greeted = run_python("-m", "holdfast_worker", "demo", "hello", "-n", "8")

    output = greeted.stdout.splitlines()
    assert sorted(output) == sorted(
        line for rank in range(8) for line in describe_rank(rank, {})
    ), greeted.stderr
    assert {"Hello from rank 7!", "Rank 0: I handle even data!", "Rank 7: I handle odd data!"} < {
        *output
    }
    assert f"Rank 3: {NOT_SET}" in output


def test_torchrun_environment_of_a_rank_is_printed() -> None:
    env = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1"}

    assert describe_rank(2, env) == [
        "Hello from rank 2!",
        "Rank 2: I handle even data!",
        "Rank 2: RANK=2, WORLD_SIZE=4, LOCAL_RANK=0, MASTER_ADDR=10.0.0.1, MASTER_PORT=not set",
    ]


def test_demo_without_ranks_is_refused_with_a_message() -> None:
    refused = run_python("-m", "holdfast_worker", "demo", "simulate", "-n", "0")

    assert refused.returncode == Exit.USAGE
    assert "argument -n: '0' is not a valid number of ranks: write 1 to 256" in refused.stderr
