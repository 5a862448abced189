"""Rendered torchrun commands start a run from two terminals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast.domain.jobfile.parser import Overrides, parse_job_file
from holdfast.rendering import TorchrunRequest, render, torchrun_commands
from support.live_service import free_port
from worker.support.run_driver import DDP_SCRIPT, STARTED, TIMEOUT_S

# A file for each rank: output of two ranks can mix within one line.
WRITE = """
import os
with open("rank-" + os.environ["RANK"], "w") as file:
    print(*(os.environ[name] for name in ("WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")), file=file)
"""


def run_in_terminals(commands: list[str], folder: Path) -> None:
    """Run commands in terminals at the same time; all must succeed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    terminals = [
        subprocess.Popen(
            ["bash", "-ec", command],
            cwd=folder,
            env={
                "PATH": path,
                "HOME": str(folder),
                "OMP_NUM_THREADS": "1",
                "LESSON_RESULT": str(folder / "result"),
            },
        )
        for command in commands
    ]
    STARTED.extend(terminals)
    assert [terminal.wait(TIMEOUT_S) for terminal in terminals] == [0, 0]


def read_ranks(folder: Path, number: int) -> list[list[str]]:
    """Return world size, local rank and node of each rank; each must have written its file."""
    return [(folder / f"rank-{rank}").read_text().split() for rank in range(number)]


@pytest.mark.full
def test_unequal_nodes_are_one_run_with_one_store(
    tmp_path: Path,
) -> None:
    script = tmp_path / "tell.py"
    script.write_text(WRITE + Path(DDP_SCRIPT).read_text())
    file = (
        "name: by hand\nnum_nodes: 2\nresources: {infra: local}\n"
        "run: holdfast-worker run tell.py 10\n"
        f"holdfast: {{checkpoint: {{store: 'file://{tmp_path}/store', every: 5 steps}}}}\n"
    )
    spec = parse_job_file(file, Overrides()).spec
    requested = TorchrunRequest(ranks=[2, 1], port=free_port())

    run_in_terminals(
        [node.command for node in torchrun_commands(spec, render(spec).task, requested)], tmp_path
    )

    ranks = read_ranks(tmp_path, 3)
    assert {world for world, *_ in ranks} == {"3"}
    # The node that joined first has the first ranks.
    assert [node for *_, node in ranks] in (["0", "0", "1"], ["0", "1", "1"])
    [commit, *_] = sorted(tmp_path.glob("store/by-hand/commits/*.json"), reverse=True)
    assert commit.stem.split("-")[0].lstrip("0") == "10"
    assert (tmp_path / "result").is_file()


def test_the_same_command_on_both_nodes_starts_eight_ranks(tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(WRITE)
    file = (
        "name: by hand\nnum_nodes: 2\nresources: {infra: local}\nrun: holdfast-worker run tell.py\n"
    )
    spec = parse_job_file(file, Overrides()).spec
    requested = TorchrunRequest(ranks=[4, 4], port=free_port())
    first, second = (node.command for node in torchrun_commands(spec, render(spec).task, requested))

    run_in_terminals([first, second], tmp_path)

    assert first == second
    ranks = read_ranks(tmp_path, 8)
    assert {world for world, *_ in ranks} == {"8"}
    assert [local for _, local, _ in ranks] == [*"01230123"]
