"""The reported rate of a real run against its true one, with stalls and preemptions."""

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

ATTEMPTS = 3
SCRIPT = """
import json, os, signal, sys, time
import torch
from holdfast_worker import Run
from holdfast_worker.telemetry import runtime_metrics

runtime_metrics.INTERVAL_S = 0.9
EVERY, BATCH = 60, torch.zeros(4, 16, dtype=torch.int64)

class Data(torch.utils.data.IterableDataset):
    def __iter__(self):
        for number in range(100_000):
            if number % EVERY == 40:
                time.sleep(2.0)  # The loader stalls.
                stalled.append(2.0)
            yield BATCH

stalled = []
model = torch.nn.Linear(1, 1)
run = Run.start()
run.track(model=model)
first, began = run.step, time.monotonic()
for batch in run.steps(torch.utils.data.DataLoader(Data(), batch_size=None), total=3 * EVERY + 20):
    time.sleep(0.05)
    here = run.step - first
    if here == 30:
        time.sleep(3.0)  # An evaluation.
        stalled.append(3.0)
    if run.step >= 1:
        truth = {"steps": here, "seconds": time.monotonic() - began - sum(stalled), "stalled": sum(stalled)}
        with open(sys.argv[1] + os.environ["HOLDFAST_ATTEMPT"], "w") as file:
            json.dump(truth, file)
    if here == EVERY and int(os.environ["HOLDFAST_ATTEMPT"]) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.full
def test_rate_is_true_despite_stalls_and_preemptions(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, every="30 steps")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    codes = [
        code
        for _ in range(ATTEMPTS)
        for code in driver.run_ranks(1, str(script), str(tmp_path / "truth-"))
    ]

    truth = [json.loads((tmp_path / f"truth-{n}").read_text()) for n in range(1, ATTEMPTS + 1)]
    true_rate = sum(one["steps"] for one in truth) / sum(one["seconds"] for one in truth)
    rates = mean_rates(driver)
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert rates.steps_per_s == pytest.approx(true_rate, rel=0.02)
    assert rates.samples_per_s == pytest.approx(4 * true_rate, rel=0.02)
    assert rates.tokens_per_s == pytest.approx(64 * true_rate, rel=0.02)
    assert sum(one["stalled"] for one in truth) > 0.3 * sum(one["seconds"] for one in truth)


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
