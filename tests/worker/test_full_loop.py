"""Training loops with accumulation, clipping, half precision and shards resume bit for bit."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from holdfast_worker.protocol.reports import ReportKind
from support.live_service import EXAMPLE

from worker.support.run_driver import TIMEOUT_S, RunDriver, wait_until

MIXED = str(Path(__file__).parent / "scripts/full_loop.py")
TRAIN = str(EXAMPLE / "train.py")
HELD = """
import os, runpy, sys, time

_, *sys.argv = sys.argv
steps = 0


def sleep(seconds, sleep=time.sleep):
    global steps
    is_step = sys._getframe(1).f_code.co_filename == sys.argv[0]
    steps += is_step
    sleep(600 if is_step and steps == 3 and os.environ["RANK"] == "1" else seconds)


time.sleep = sleep
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""The example, of which rank 1 stays in its third step: it sleeps once in each."""
PASS = 100
"""Samples of a rank in a pass of the full loop: 13 steps, of which the last has four samples."""


def test_loop_killed_in_pass_two_keeps_order_and_loss_scale(
    tmp_path: Path,
) -> None:
    uninterrupted, fallen = (
        RunDriver(tmp_path / "uninterrupted"),
        RunDriver(tmp_path / "fallen", "20 steps"),
    )

    assert uninterrupted.run_ranks(2, MIXED, "27") == [0, 0]
    codes = fallen.run_ranks(2, MIXED, "27", "--fall", f"1:24:{signal.SIGKILL}")
    assert fallen.run_ranks(2, MIXED, "27") == [0, 0]

    parsed, known = json.loads(fallen.result), json.loads(uninterrupted.result)
    begun = fallen.reports(ReportKind.TRAINING_STARTED)[-1].body["step"]
    assert codes == [1, -signal.SIGKILL]
    assert begun == 20
    assert parsed["weights"] == known["weights"]
    assert parsed["scaler"] == known["scaler"]
    assert parsed["scales"] == known["scales"][20:]
    assert known["scales"][6:14] == [2.0**15] * 7 + [2.0**16]
    assert len(set(known["scales"][20:])) == 2  # It grew, was too large for a step, and shrank.
    assert parsed["order"] == known["order"][PASS + 7 * 8 :]
    assert known["order"][:PASS] != known["order"][PASS : 2 * PASS]


@pytest.mark.parametrize(
    "switches",
    [("--precision=bf16",), pytest.param(("--precision=fp16", "--shard"), marks=pytest.mark.full)],
)
def test_example_with_all_features_ends_with_equal_weights(
    tmp_path: Path, switches: tuple[str, ...]
) -> None:
    usual = ("--steps=8", "--batch-size=6", "--accumulate=3", "--clip=0.5")
    uninterrupted, killed = (
        RunDriver(tmp_path / "uninterrupted", "2 steps"),
        RunDriver(tmp_path / "killed", "2 steps"),
    )

    assert uninterrupted.run_ranks(2, TRAIN, *usual, *switches) == [0, 0]
    (tmp_path / "held.py").write_text(HELD)
    one, other = killed.start_ranks(2, str(tmp_path / "held.py"), TRAIN, *usual, *switches)
    wait_until(lambda: bool(killed.reports(ReportKind.CHECKPOINT_COMMITTED)))
    other.kill()
    assert [one.wait(TIMEOUT_S), other.wait(TIMEOUT_S)] == [1, -signal.SIGKILL]
    assert killed.run_ranks(2, TRAIN, *usual, *switches) == [0, 0]

    begun = killed.reports(ReportKind.TRAINING_STARTED)[-1].body["step"]
    saved = [
        driver.reports(ReportKind.CHECKPOINT_COMMITTED)[-1] for driver in (uninterrupted, killed)
    ]
    assert begun == 2
    assert saved[0].body["step"] == saved[1].body["step"] == 8
    assert saved[0].body["weights_sha256"] == saved[1].body["weights_sha256"]
