"""Lightning's Trainer resumes from the checkpoint that a run requested."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from worker.support.run_driver import RunDriver

SCRIPT = str(Path(__file__).parents[1] / "scripts/lightning_trainer.py")
STEPS = "26"
"""A pass has 12 steps, or 4 on three ranks, and a checkpoint is due every 7."""


@pytest.mark.parametrize(
    ("ranks", "preempted_at", "saves"),
    [
        (1, 24, [7, 14, 21, 24, 26]),  # At the end of a pass.
        # In the middle of a pass.
        pytest.param(3, 17, [7, 14, 17, 24, 26], marks=pytest.mark.full),
    ],
)
def test_preempted_trainer_equals_an_uninterrupted_one(
    tmp_path: Path, ranks: int, preempted_at: int, saves: list[int]
) -> None:
    by_torchrun = {"TORCHELASTIC_RUN_ID": "lesson"}  # Otherwise Lightning starts its own ranks.
    driver = RunDriver(tmp_path, every="7 steps", extra=by_torchrun)
    fall = f"{ranks - 1}:{preempted_at - 1}:{signal.SIGTERM}"

    codes = driver.run_ranks(ranks, SCRIPT, STEPS, "--fall", fall)
    again = driver.run_ranks(ranks, SCRIPT, STEPS)

    assert codes == [Exit.PREEMPTED] * ranks
    assert again == [0] * ranks
    first, second = driver.reports(ReportKind.TRAINING_STARTED)
    saved = [r.body["step"] for r in driver.reports(ReportKind.CHECKPOINT_COMMITTED)]
    point = driver.reports(ReportKind.PROGRESS)[-1].body["values"]
    kept, plain = driver.result.split()
    assert kept == plain
    assert (first.body["total_steps"], first.body["step"], second.body["step"]) == (
        26,
        0,
        preempted_at,
    )
    assert saved == saves
    assert isinstance(point, dict)
    assert "loss" in point
