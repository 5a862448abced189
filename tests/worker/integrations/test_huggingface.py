"""Hugging Face's Trainer resumes from the checkpoint that the ranks voted for."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from worker.support.run_driver import RunDriver

SCRIPT = str(Path(__file__).parents[1] / "scripts/huggingface_trainer.py")
STEPS = "26"
"""A pass has 6 steps; an evaluation is due every 5 steps, a checkpoint every 7."""


def test_preempted_trainer_equals_an_uninterrupted_one(
    tmp_path: Path,
) -> None:
    driver = RunDriver(tmp_path, every="7 steps")

    codes = driver.run_ranks(2, SCRIPT, str(tmp_path), STEPS, "--fall", f"1:16:{signal.SIGTERM}")
    left_over = list(tmp_path.glob("node-*/*"))
    shutil.rmtree(tmp_path / "node-0")  # The next attempt has new nodes.
    shutil.rmtree(tmp_path / "node-1")
    again = driver.run_ranks(2, SCRIPT, str(tmp_path), STEPS)

    first, second = driver.reports(ReportKind.TRAINING_STARTED)
    saved = [r.body["step"] for r in driver.reports(ReportKind.CHECKPOINT_COMMITTED)]
    point = driver.reports(ReportKind.PROGRESS)[-1].body["values"]
    kept, plain = driver.result.split()
    assert codes == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert left_over == []  # The local copies of requested checkpoints are removed.
    assert again == [0, 0]
    assert kept == plain
    assert (first.body["total_steps"], first.body["step"], second.body["step"]) == (26, 0, 17)
    assert saved == [7, 14, 17, 24, 26]
    assert isinstance(point, dict)
    assert {"loss", "eval_loss", "learning_rate"} <= point.keys()


@pytest.mark.parametrize(
    ("knows_of", "save_only_model", "message"),
    [
        (1, False, "2 ranks, but the Trainer has 1: .*use_cpu=True"),
        (2, True, "write save_only_model=False"),
        (2, False, "^$"),
    ],
)
def test_unsupported_trainer_settings_are_explained(
    knows_of: int, save_only_model: bool, message: str
) -> None:
    # Imported here, because every test process collects this file, and transformers takes a second.
    from holdfast_worker.huggingface import unsupported_reason

    args = SimpleNamespace(world_size=knows_of, save_only_model=save_only_model)

    assert re.search(message, unsupported_reason(args, world_size=2))
