"""The recovery benchmark for GPUs, on this machine without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_GPU = 77
SMALL = ("--width", "16", "--depth", "2", "--batch", "8")
# Nodes of several groups listen on all addresses, because they do not know at which one others reach them.
WITHOUT_NETWORK = (
    *("unshare", "--net", *(() if os.geteuid() == 0 else ("--map-root-user",))),
    *("sh", "-c", 'ip link set lo up && exec "$0" "$@"'),
)


def run(*words: str, inside: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    folders = ("tests", "bench", "service", "worker")
    return subprocess.run(
        [*inside, sys.executable, "-m", "gpu.lost_ranks", *words],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in folders),
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_is_measured_without_a_gpu() -> None:
    result = run()

    assert result.returncode == NO_GPU
    assert result.stdout.startswith("no GPU here: nothing was measured")


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["elastic", "groups"])
def test_weights_are_equal_after_the_loss_of_a_node_with_gloo(way: str) -> None:
    result = run("--backend", "gloo", "--only", way, *SMALL, inside=WITHOUT_NETWORK)

    rows = [line.split() for line in result.stdout.splitlines() if line.startswith(way)]
    assert [row[1] for row in rows] == ["nothing", "node"], result.stdout + result.stderr
    assert [row[-1] for row in rows] == ["equal", "equal"], result.stdout
    assert result.returncode == 0
