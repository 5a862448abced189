"""A preempted loop with accelerate ends with the weights of an uninterrupted one."""

from __future__ import annotations

import signal
from pathlib import Path

from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from worker.support.run_driver import RunDriver

SCRIPT = str(Path(__file__).parents[1] / "scripts/accelerate_loop.py")
STEPS = "30"
"""A pass has 13 steps, and a checkpoint is due every 10."""


def test_preempted_loop_ends_where_plain_accelerate_does(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path)

    codes = driver.run_ranks(2, SCRIPT, STEPS, "--fall", f"1:17:{signal.SIGTERM}")
    again = driver.run_ranks(2, SCRIPT, STEPS)

    _, second = driver.reports(ReportKind.TRAINING_STARTED)
    ranks, kept, plain = driver.result.split()
    assert codes == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert again == [0, 0]
    assert second.body["step"] == 17
    assert ranks == "2"
    assert kept == plain


SETS_DEVICE = """
import torch
from accelerate import PartialState
from holdfast_worker import Run

asked = []
accept = torch.cpu.set_device
torch.cpu.set_device = lambda device: asked.append(str(device)) or accept(device)
run = Run.start()
state = PartialState(cpu=True)
print("processes:", state.num_processes, "asked for:", *asked)
for device in (1, "cpu", torch.device("cpu", 1)):
    accept(device)
"""


def test_device_setting_without_gpus_is_accepted(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(SETS_DEVICE)

    codes = driver.run_ranks(2, str(script))

    assert codes == [0, 0]
    assert "processes: 2 asked for: cpu" in driver.log(0)
    assert "processes: 2 asked for: cpu" in driver.log(1)
