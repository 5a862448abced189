"""Hugging Face's Trainer is kept in place: what it saves when the ranks agree is what it goes on from."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from holdfast_worker.huggingface import flaw_of
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind

from worker.stage import Stage

SCRIPT = str(Path(__file__).with_name("pupil.py"))
STEPS = "26"
"""With six steps in a pass over the data, an evaluation every five, a checkpoint every seven."""


def test_a_trainer_that_is_told_to_go_ends_where_one_does_that_was_left_alone(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, every="7 steps")

    codes = stage.run_ranks(2, SCRIPT, str(tmp_path), STEPS, "--fall", f"1:16:{signal.SIGTERM}")
    left_over = list(tmp_path.glob("node-*/*"))
    shutil.rmtree(tmp_path / "node-0")  # The next nodes are others.
    shutil.rmtree(tmp_path / "node-1")
    again = stage.run_ranks(2, SCRIPT, str(tmp_path), STEPS)

    first, second = stage.reports(ReportKind.TRAINING_STARTED)
    saved = [r.body["step"] for r in stage.reports(ReportKind.CHECKPOINT_COMMITTED)]
    point = stage.reports(ReportKind.PROGRESS)[-1].body["values"]
    kept, plain = stage.result.split()
    assert codes == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert left_over == []  # What the Trainer saved on our word is gone.
    assert again == [0, 0]
    assert kept == plain
    assert (first.body["total_steps"], first.body["step"], second.body["step"]) == (26, 0, 17)
    assert {7, 17, 26} <= set(saved)  # Others wait where the one before is still on its way.
    assert isinstance(point, dict)
    assert {"loss", "eval_loss", "learning_rate"} <= point.keys()


@pytest.mark.parametrize(
    ("knows_of", "save_only_model", "words"),
    [
        (1, False, "2 ranks, and the Trainer knows of 1: .*use_cpu=True"),
        (2, True, "write save_only_model=False"),
        (2, False, "^$"),
    ],
)
def test_what_keeps_a_trainer_from_being_kept_is_said_in_words(
    knows_of: int, save_only_model: bool, words: str
) -> None:
    args = SimpleNamespace(world_size=knows_of, save_only_model=save_only_model)

    assert re.search(words, flaw_of(args, world_size=2))
