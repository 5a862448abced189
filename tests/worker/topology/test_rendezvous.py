"""Real ranks join by each launcher and method, and identify themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.live_service import free_port
from worker.support.run_driver import TIMEOUT_S

PROGRAM = str(Path(__file__).parents[1] / "support/rendezvous_ranks.py")


def by_torchrun(rank: int, ranks: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}


def by_slurm(rank: int, port: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NODELIST": "localhost",
        "HOLDFAST_MASTER_PORT": str(port),
    }


def by_skypilot(rank: int, port: int) -> dict[str, str]:
    return {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "HOLDFAST_MASTER_PORT": str(port),
    }


def test_ranks_of_every_launcher_meet_and_identify_themselves(tmp_path: Path) -> None:
    first, second, third, fourth = (free_port() for _ in range(4))
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(first)}
    address = {"HOLDFAST_INIT_METHOD": f"tcp://127.0.0.1:{second}"}
    file = {"HOLDFAST_INIT_METHOD": f"file://{tmp_path}/meet"}
    runs = [
        [by_torchrun(rank, 3) | master for rank in range(3)],
        [by_torchrun(rank, 2) | address for rank in range(2)],
        [by_torchrun(rank, 2) | file for rank in range(2)],
        [by_slurm(rank, third) for rank in range(2)],
        [by_skypilot(rank, fourth) for rank in range(2)],
        [{}],
    ]

    met = subprocess.run(
        [sys.executable, PROGRAM, json.dumps(runs)],
        env={"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )

    output = met.stdout.splitlines()
    assert json.loads(output[-1]) == [[0, 0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0]]
    lines = [line for line in output if line.startswith("[RANK")]
    assert sorted(lines) == sorted(
        [f"[RANK {rank}] WORLD_SIZE=3" for rank in range(3)]
        + [f"[RANK {rank}] WORLD_SIZE=2" for rank in range(2)] * 4
    )
