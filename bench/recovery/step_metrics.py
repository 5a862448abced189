"""Time that measuring throughput adds to each step. See README.md."""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch
from holdfast_worker.telemetry.runtime_metrics import RuntimeMetrics
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase

STEPS: Final = 20_000
"""Steps of one measurement. A lower value measures noise; a higher value takes longer."""
LIMIT: Final = 0.002
"""Share of a step that measuring may take."""
STEP_S: Final = 0.005
"""The shortest usual step of a model on one GPU.
A lower value forbids what no training notices; a higher value permits what a small model does."""
IDS: Final = torch.zeros(8, 1024, dtype=torch.int64)
BATCHES: Final[Mapping[str, object]] = {
    "tensor": IDS,
    "pair of tensors": (IDS, IDS),
    "Hugging Face": {"attention_mask": IDS, "input_ids": IDS, "labels": IDS},
    "nested": [{"image": {"pixels": torch.zeros(8, 3, 4, 4)}, "label": IDS}],
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m recovery.step_metrics", description=__doc__)
    parser.add_argument("--times", type=int, default=15, help="measurements of each batch")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'batch':<18}{'a step':>10}{'a reading':>12}{f'of {STEP_S * 1e3:.0f} ms':>10}")
    for name, batch in BATCHES.items():
        step_s, reading_s = added_s(batch, arguments.times)
        share = step_s / STEP_S + reading_s / 10  # One reading in ten seconds.
        verdict = "" if share < LIMIT else f"  above {LIMIT:.1%}"
        print(f"{name:<18}{step_s * 1e6:>7.2f} us{reading_s * 1e6:>9.0f} us{share:>10.3%}{verdict}")


def added_s(batch: object, times: int) -> tuple[float, float]:
    """Median seconds of a step, and of a reading, that measuring takes."""
    heartbeat = HeartbeatWriter()
    metrics = RuntimeMetrics(heartbeat, torch.device("cpu"))
    for phase in (Phase.SAVING, Phase.LOADING, Phase.STEPPING):
        heartbeat.enter(phase)
    metrics.begin()

    def step() -> None:
        metrics.count_batch(batch)
        metrics.count_step()

    steps, readings = [], []
    gc.disable()
    for _ in range(times):
        steps.append(_mean_s(step, STEPS) - _mean_s(_nothing, STEPS))
        readings.append(_mean_s(metrics.read, 1))
    gc.enable()
    return statistics.median(steps), statistics.median(readings)


def _mean_s(work: Callable[[], object], times: int) -> float:
    begin_ns = time.process_time_ns()
    for _ in range(times):
        work()
    return (time.process_time_ns() - begin_ns) / 1e9 / times


def _nothing() -> None:
    pass


if __name__ == "__main__":
    main()
