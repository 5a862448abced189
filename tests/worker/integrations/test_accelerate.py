"""A loop around accelerate is kept by a run: it ends where accelerate alone would have ended."""

from __future__ import annotations

import signal
from pathlib import Path

from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from worker.support.run_driver import RunDriver

SCRIPT = str(Path(__file__).parents[1] / "scripts/accelerate_loop.py")
STEPS = "30"
"""With thirteen steps in a pass over the data, and a checkpoint every ten."""


def test_a_loop_that_is_told_to_go_ends_where_accelerate_alone_does(tmp_path: Path) -> None:
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
