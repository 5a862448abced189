"""Lightning's Trainer: it resumes from the checkpoint that it saved on request."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from worker.support.run_driver import RunDriver

SCRIPT = str(Path(__file__).parents[1] / "scripts/lightning_trainer.py")
STEPS = "26"
"""With twelve steps in a pass over the data, or four on three ranks, and a checkpoint every seven."""


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        (1, 24),  # At the end of a pass, of which nothing is left.
        pytest.param(3, 17, marks=pytest.mark.full),  # In the middle of one.
    ],
)
def test_preempted_trainer_equals_an_uninterrupted_one(
    tmp_path: Path, ranks: int, told: int
) -> None:
    by_torchrun = {"TORCHELASTIC_RUN_ID": "lesson"}  # Otherwise Lightning starts ranks of its own.
    driver = RunDriver(tmp_path, every="7 steps", extra=by_torchrun)
    fall = f"{ranks - 1}:{told - 1}:{signal.SIGTERM}"

    codes = driver.run_ranks(ranks, SCRIPT, STEPS, "--fall", fall)
    again = driver.run_ranks(ranks, SCRIPT, STEPS)

    assert codes == [Exit.PREEMPTED] * ranks
    assert again == [0] * ranks
    first, second = driver.reports(ReportKind.TRAINING_STARTED)
    saved = [r.body["step"] for r in driver.reports(ReportKind.CHECKPOINT_COMMITTED)]
    point = driver.reports(ReportKind.PROGRESS)[-1].body["values"]
    kept, plain = driver.result.split()
    assert kept == plain
    assert (first.body["total_steps"], first.body["step"], second.body["step"]) == (26, 0, told)
    assert {7, told, 26} <= set(saved)  # Others wait where the one before is still on its way.
    assert isinstance(point, dict)
    assert "loss" in point
