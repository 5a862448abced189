"""What a training loop usually has (parts of batches, clipped gradients, half precision, shards) goes on bit for bit."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from holdfast_worker.wire import ReportKind
from premises import EXAMPLE

from worker.stage import Stage, wait_until

MIXED = str(Path(__file__).with_name("mixed.py"))
TRAIN = str(EXAMPLE / "train.py")


def test_a_scale_goes_on_growing_where_it_was(tmp_path: Path) -> None:
    calm, fallen = Stage(tmp_path / "calm"), Stage(tmp_path / "fallen")

    assert calm.run_ranks(2, MIXED, "27") == [0, 0]
    codes = fallen.run_ranks(2, MIXED, "27", "--fall", f"1:18:{signal.SIGKILL}")
    assert fallen.run_ranks(2, MIXED, "27") == [0, 0]

    begun = fallen.reports(ReportKind.TRAINING_STARTED)[-1].body["step"]
    told, known = json.loads(fallen.result), json.loads(calm.result)
    assert codes == [1, -signal.SIGKILL]
    assert begun == 10  # Between the growth after seven steps and the one after fourteen.
    assert known["scaler"]["_growth_tracker"] > 0
    assert sorted(set(known["scales"])) == [2.0**n for n in range(14, 18)]
    assert told["weights"] == known["weights"]
    assert told["scaler"] == known["scaler"]
    assert told["scales"] == known["scales"][10:]


@pytest.mark.parametrize("switches", [("--precision=bf16",), ("--precision=fp16", "--shard")])
def test_the_example_ends_with_the_same_weights_with_all_that_a_loop_usually_has(
    tmp_path: Path, switches: tuple[str, ...]
) -> None:
    usual = ("--steps=12", "--batch-size=6", "--accumulate=3", "--clip=0.5")
    calm, killed = Stage(tmp_path / "calm", "3 steps"), Stage(tmp_path / "killed", "3 steps")

    assert calm.run_ranks(2, TRAIN, *usual, *switches) == [0, 0]
    one, other = killed.start_ranks(2, TRAIN, *usual, *switches, "--step-seconds=0.1")
    wait_until(lambda: bool(killed.reports(ReportKind.CHECKPOINT_COMMITTED)))
    other.kill()
    assert [one.wait(60), other.wait(60)] == [1, -signal.SIGKILL]
    assert killed.run_ranks(2, TRAIN, *usual, *switches) == [0, 0]

    begun = killed.reports(ReportKind.TRAINING_STARTED)[-1].body["step"]
    saved = [stage.reports(ReportKind.CHECKPOINT_COMMITTED)[-1] for stage in (calm, killed)]
    assert 0 < int(str(begun)) < 12
    assert saved[0].body["step"] == saved[1].body["step"] == 12
    assert saved[0].body["weights_sha256"] == saved[1].body["weights_sha256"]
