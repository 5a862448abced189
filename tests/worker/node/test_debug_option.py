"""`--debug`: a small run with verbose logs, with exactly the documented settings."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast_worker.node.rank_variables import DEBUG_RANKS, DEBUG_VARIABLES
from holdfast_worker.protocol.environment import Exit
from worker.support.run_driver import RunDriver

PAGE = (Path(__file__).parents[3] / "docs/reference/worker-cli.md").read_text()
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


def test_debug_run_saves_synchronously_with_documented_settings(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    driver = RunDriver(
        tmp_path, every="2 steps", forks=False
    )  # torch reads these variables at import.

    code, out, err = driver.run_wrapper("--debug", str(script), *DEBUG_VARIABLES)

    assert code == 0, err + out
    output = driver.log(1).splitlines()
    assert [line for line in output if line.startswith("durable")] == [
        f"durable {step} {step // 2}" for step in range(6)
    ]
    assert output[-1] == f"{DEBUG_RANKS} DETAIL INFO 1"
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL is replaced by INFO" in driver.log(0)


def test_debug_settings_match_their_documentation() -> None:
    [table] = re.findall(r"It sets:.*?\n\n(.*?)\n\n", PAGE, re.DOTALL)
    result = re.findall(r"\| `([^`]+)` \|$", table, re.MULTILINE)

    assert set(result) == {
        f"--nproc-per-node {DEBUG_RANKS}",
        *(f"{name}={value}" for name, value in DEBUG_VARIABLES.items()),
    }


def test_several_nodes_are_refused(tmp_path: Path) -> None:
    nodes = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1"}
    driver = RunDriver(tmp_path, extra=nodes)

    code, _, err = driver.run_wrapper("--debug", "train.py")

    assert code == Exit.USAGE
    assert "--debug is for a single node, but this run has 2" in err
