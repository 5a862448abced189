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

TELL = """
import os
print("-".join(os.environ[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")))
"""


WRITE = """
import os
with open("rank-" + os.environ["RANK"], "w") as file:
    file.write(os.environ["WORLD_SIZE"] + " " + os.environ["LOCAL_RANK"])
"""


def run_in_terminals(commands: list[str], folder: Path) -> list[str]:
    """Run commands in terminals at the same time and return their output; all must succeed."""
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
            stdout=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    STARTED.extend(terminals)
    found = [terminal.communicate(timeout=TIMEOUT_S)[0] for terminal in terminals]
    assert [terminal.returncode for terminal in terminals] == [0, 0]
    return found


@pytest.mark.full
def test_unequal_nodes_are_one_run_with_one_store(
    tmp_path: Path,
) -> None:
    script = tmp_path / "tell.py"
    script.write_text(TELL + Path(DDP_SCRIPT).read_text())
    file = (
        "name: by hand\nnum_nodes: 2\nresources: {infra: local}\n"
        "run: holdfast-worker run tell.py 10\n"
        f"holdfast: {{checkpoint: {{store: 'file://{tmp_path}/store', every: 5 steps}}}}\n"
    )
    spec = parse_job_file(file, Overrides()).spec
    requested = TorchrunRequest(ranks=[2, 1], port=free_port())

    found = run_in_terminals(
        [node.command for node in torchrun_commands(spec, render(spec).task, requested)], tmp_path
    )

    ranks = sorted(line.split("-") for line in "".join(found).split() if line.count("-") == 3)
    assert [rank for rank, *_ in ranks] == ["0", "1", "2"]
    assert {world for *_, world in ranks} == {"3"}
    # The node that joined first has the first ranks.
    assert [node for *_, node, _ in ranks] in (["0", "0", "1"], ["0", "1", "1"])
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
    written = [(tmp_path / f"rank-{rank}").read_text().split() for rank in range(8)]
    assert {world for world, _ in written} == {"8"}
    assert [local for _, local in written] == [*"01230123"]
