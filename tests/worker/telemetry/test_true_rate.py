"""The reported rate of a run against its true one, with stalls and preemptions.

The ranks are real, with checkpoints and a kill at each preemption. Their clock moves only as their work takes time, so that the true rate is known.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from statistics import fmean

import pytest
from holdfast.domain.jobs.reports import Point, parse_report
from holdfast.domain.throughput.rates import TrainingRates, training_rates
from holdfast_worker.protocol.reports import RuntimeMetricName
from worker.support.run_driver import RunDriver

SCRIPT = """
import json, os, signal, sys, time
import torch
from holdfast_worker import Run

now_s, stalled_s = time.monotonic(), 0.0
time.monotonic = lambda: now_s
time.monotonic_ns = lambda: int(now_s * 1e9)

def work(seconds, *, stalls=False):
    global now_s, stalled_s
    now_s += seconds
    stalled_s += seconds * stalls

class Data(torch.utils.data.IterableDataset):
    def __iter__(self):
        for number in range(100_000):
            work(0.01)
            if number == 1500:
                work(90.0, stalls=True)  # The loader hangs.
            yield torch.zeros(4, 16, dtype=torch.int64)

attempt = int(os.environ["HOLDFAST_ATTEMPT"])
run = Run.start()
run.track(model=torch.nn.Linear(1, 1))
first, began_s = run.step, None
for batch in run.steps(torch.utils.data.DataLoader(Data(), batch_size=None), total=3000):
    if began_s is None:
        work(120.0)  # It compiles.
        began_s, stalled_s = now_s, 0.0
    work(0.04 if attempt != 2 else 0.06)  # The second attempt has slower nodes.
    if run.step % 700 == 0:
        work(45.0, stalls=True)  # It evaluates.
    steps = run.step - first
    with open(sys.argv[1], "w") as file:
        json.dump({"steps": steps, "seconds": now_s - began_s - stalled_s, "stalled": stalled_s}, file)
    if steps == 1200 and attempt < 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_rate_is_true_despite_stalls_and_preemptions(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, every="500 steps")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    truths = [tmp_path / f"truth-{attempt}" for attempt in (1, 2, 3)]
    codes = [code for file in truths for code in driver.run_ranks(1, str(script), str(file))]

    truth = [json.loads(file.read_text()) for file in truths]
    true_rate = sum(one["steps"] for one in truth) / sum(one["seconds"] for one in truth)
    rates = mean_rates(driver)
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert rates.steps_per_s == pytest.approx(true_rate, rel=0.02)
    assert rates.samples_per_s == pytest.approx(4 * true_rate, rel=0.02)
    assert rates.tokens_per_s == pytest.approx(64 * true_rate, rel=0.02)
    assert rates.data_s == pytest.approx(0.01, rel=0.02)
    assert sum(one["stalled"] for one in truth) > sum(one["seconds"] for one in truth) / 2


def mean_rates(driver: RunDriver) -> TrainingRates:
    """The means of the reported rates, as the service shows them."""
    points = [found for each in driver.reports() if isinstance(found := parse_report(each), Point)]
    found = training_rates(
        {
            name: fmean(value for p in points if (value := p.values.get(name)) is not None)
            for name in RuntimeMetricName
            if any(name in p.values for p in points)
        }
    )
    assert found
    return found
