"""`--debug`: a run that is small and talkative, by exactly the settings that its documentation names."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast_worker.node.launch import RANKS, VARIABLES
from holdfast_worker.protocol.environment import Exit

from worker.stage import Stage

PAGE = (Path(__file__).parents[2] / "docs/reference/worker-cli.md").read_text()
SCRIPT = """
import os, sys, torch
from pathlib import Path
from holdfast_worker import Run

run = Run.start()
model = run.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.track(model=model, optimizer=optimizer)
commits = Path(os.environ["HOLDFAST_STORE"].removeprefix("file://"))
for x in run.steps(torch.utils.data.DataLoader(torch.ones(8, 1)), total=6):
    print("durable", run.step, len(list(commits.glob("*/commits/*.json"))))
    model(x).mean().backward()
    optimizer.step()
print(run.world_size, *(os.environ[name] for name in sys.argv[1:]))
"""


def test_training_waits_for_its_checkpoints_and_the_ranks_find_what_is_documented(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    stage = Stage(tmp_path, every="2 steps", forks=False)  # torch reads these variables at import.

    code, out, err = stage.run_wrapper("--debug", str(script), *VARIABLES)

    assert code == 0, err + out
    said = stage.log(1).splitlines()
    assert [line for line in said if line.startswith("durable")] == [
        f"durable {step} {step // 2}" for step in range(6)
    ]
    assert said[-1] == f"{RANKS} DETAIL INFO 1"
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL is taken for INFO" in stage.log(0)


def test_it_is_documented_to_the_letter() -> None:
    [table] = re.findall(r"does exactly this.*?\n\n(.*?)\n\n", PAGE, re.DOTALL)
    told = re.findall(r"\| `([^`]+)` \|$", table, re.MULTILINE)

    assert set(told) == {
        f"--nproc-per-node {RANKS}",
        *(f"{name}={value}" for name, value in VARIABLES.items()),
    }


def test_several_nodes_are_refused(tmp_path: Path) -> None:
    nodes = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1"}
    stage = Stage(tmp_path, extra=nodes)

    code, _, err = stage.run_wrapper("--debug", "train.py")

    assert code == Exit.USAGE
    assert "--debug is for one node, and this run has 2" in err
