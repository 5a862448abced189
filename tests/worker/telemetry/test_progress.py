"""Progress lines in the log of rank 0."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from holdfast_worker.run_dir import RunDir
from holdfast_worker.telemetry.metrics import MetricLogger
from holdfast_worker.telemetry.progress import MAX_METRICS, ProgressLog
from holdfast_worker.telemetry.reporter import Reporter
from support.live_service import EXAMPLE
from worker.support.run_driver import RunDriver


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_line_comes_after_a_second_and_then_every_ten(capsys: pytest.CaptureFixture[str]) -> None:
    clock, saved = Clock(), [0]
    log = ProgressLog(1_000, 2_000, lambda: saved[0], clock)

    for step, at_s, saved_step in [(1, 0.5, 0), (2, 1, 0), (90, 10, 1_050), (92, 11, 1_050)]:
        clock.now_s, saved[0] = 100 + at_s, saved_step
        log.write_if_due(1_000 + step, {"loss": 0.31234567, "rate": 1e-5})

    assert capsys.readouterr().err.splitlines() == [
        "holdfast: step 1,002 of 2,000, 2 steps/s, loss 0.3123, rate 1e-05, no checkpoint yet",
        "holdfast: step 1,092 of 2,000, 9 steps/s, loss 0.3123, rate 1e-05, checkpoint at step 1,050",
    ]


def test_line_has_only_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    log = ProgressLog(0, None, None, clock)

    clock.now_s += 120
    log.write_if_due(1, {})
    clock.now_s += 10
    log.write_if_due(12_346, {f"m{n}": float("nan") for n in range(MAX_METRICS + 1)})

    slow, fast = capsys.readouterr().err.splitlines()
    assert slow == "holdfast: step 1, 0.00833 steps/s"
    assert fast.startswith("holdfast: step 12,346, 1,234 steps/s, m0 nan, ")
    assert fast.endswith(f"m{MAX_METRICS - 1} nan")


def test_tensor_is_read_once_for_point_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    to_float = torch.Tensor.__float__
    monkeypatch.setattr(torch.Tensor, "__float__", lambda t: reads.append(1) or to_float(t))
    metrics, clock = MetricLogger(Reporter(None)), Clock()
    metrics.progress = ProgressLog(0, None, None, clock)
    clock.now_s += 60

    for step in range(1, 6):
        metrics.log({"loss": torch.tensor(0.5)})
        metrics.end_step(step)

    assert len(reads) == 1


def test_progress_line_is_not_the_last_output_of_a_failed_rank(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.clear()
    run_dir.log_file(0).parent.mkdir(exist_ok=True)

    run_dir.log_file(0).write_text("no space left\n\nholdfast: step 7, 2 steps/s\n")
    assert run_dir.last_line(0) == "no space left"
    run_dir.log_file(0).write_text("holdfast: step 7, 2 steps/s\n")
    assert not run_dir.last_line(0)


def test_only_rank_zero_of_a_run_logs_progress(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, "2 steps")

    args = ("--steps=8", "--batch-size=6", "--step-seconds=0.3")
    assert driver.run_ranks(2, str(EXAMPLE / "train.py"), *args) == [0, 0]

    line = r"holdfast: step \d of 8, \S+ steps/s, loss \S+, learning_rate \S+, .*checkpoint"
    assert re.search(line, driver.log(0))
    assert "steps/s" not in driver.log(1)
