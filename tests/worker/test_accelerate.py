"""A loop around accelerate is kept by a run: it ends where accelerate alone would have ended."""

from __future__ import annotations

import signal
from pathlib import Path

from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind

from worker.stage import Stage

SCRIPT = str(Path(__file__).with_name("journeyman.py"))
STEPS = "30"
"""With thirteen steps in a pass over the data, and a checkpoint every ten."""


def test_a_loop_that_is_told_to_go_ends_where_accelerate_alone_does(tmp_path: Path) -> None:
    stage = Stage(tmp_path)

    codes = stage.run_ranks(2, SCRIPT, STEPS, "--fall", f"1:17:{signal.SIGTERM}")
    again = stage.run_ranks(2, SCRIPT, STEPS)

    _, second = stage.reports(ReportKind.TRAINING_STARTED)
    ranks, kept, plain = stage.result.split()
    assert codes == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert again == [0, 0]
    assert second.body["step"] == 17
    assert ranks == "2"
    assert kept == plain
