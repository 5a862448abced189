"""Runtime metrics: shares of time that sum to 1, and the timing that DDP measures."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from holdfast.domain.diagnostics.hints import find_hints
from holdfast.domain.diagnostics.known_failures import FailurePattern
from holdfast.domain.jobs.reports import Point
from holdfast_worker.protocol.reports import ReportKind, RuntimeMetricName
from holdfast_worker.telemetry.metrics import MetricLogger
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.runtime_metrics import RuntimeMetrics, exposed_communication
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase
from support.events import at, submitted
from worker.support.run_driver import RunDriver

CPU = torch.device("cpu")
STEP = {
    "forward_compute_time": 300,
    "backward_compute_time": 400,
    "backward_comm_time": 500,
    "backward_compute_comm_overlap_time": 200,
}
"""DDP's timing of a step: 500 of communication, of which 300 are not overlapped."""


class FakeDdp:
    """A fake of DDP's timing interface."""

    def __init__(self, timing: dict[str, Any]) -> None:
        self.received = timing

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return self.received


def add_time(heartbeat: HeartbeatWriter, **seconds: float) -> None:
    """Add time to phases of a heartbeat."""
    for name, amount in seconds.items():
        phase = Phase[name.upper()]
        heartbeat.spent_ns[phase] = heartbeat.spent_ns.get(phase, 0) + int(amount * 1e9)


def test_time_is_split_by_phase() -> None:
    heartbeat = HeartbeatWriter()

    for phase in (Phase.LOADING, Phase.STEPPING, Phase.LOADING, Phase.STEPPING):
        heartbeat.enter(phase)

    assert set(heartbeat.spent_ns) == {Phase.STARTING, Phase.LOADING, Phase.STEPPING}
    assert all(ns > 0 for ns in heartbeat.spent_ns.values())


def test_data_wait_is_a_share_of_time_since_the_last_reading() -> None:
    heartbeat = HeartbeatWriter()
    add_time(heartbeat, starting=100)
    runtime_metrics = RuntimeMetrics(heartbeat, CPU)

    add_time(heartbeat, loading=1, stepping=3)
    first = runtime_metrics.read()
    add_time(heartbeat, loading=3, stepping=1)
    second = runtime_metrics.read()

    assert (first[RuntimeMetricName.LOADING], second[RuntimeMetricName.LOADING]) == (0.25, 0.75)


def test_overlapped_communication_does_not_count_as_wait() -> None:
    assert exposed_communication(STEP) == (300, 1000)
    assert exposed_communication({**STEP, "backward_compute_comm_overlap_time": 600}) == (0, 700)
    assert exposed_communication({"iteration": 0}) == (0, 0)


def test_gradient_waits_of_several_models_are_summed() -> None:
    runtime_metrics = RuntimeMetrics(HeartbeatWriter(), CPU)
    none = runtime_metrics.read()
    runtime_metrics.watch(FakeDdp(STEP))  # type: ignore[arg-type]
    runtime_metrics.watch(FakeDdp({**STEP, "backward_comm_time": 200}))  # type: ignore[arg-type]

    result = runtime_metrics.read()

    assert RuntimeMetricName.COMMUNICATION not in none
    assert result[RuntimeMetricName.COMMUNICATION] == 300 / 1700


def test_host_memory_is_reported_without_gpu_metrics_on_cpu() -> None:
    result = RuntimeMetrics(HeartbeatWriter(), CPU).read()

    assert result[RuntimeMetricName.HOST_MEMORY] > 1e6
    assert not {RuntimeMetricName.GPU_MEMORY, RuntimeMetricName.GPU_UTILIZATION} & result.keys()


def test_due_runtime_metrics_are_part_of_a_point(tmp_path: Path) -> None:
    due = [{"holdfast/loading": 0.5}, {}]
    metric_logger = MetricLogger(Reporter(Spool(tmp_path, 1)), lambda: due.pop(0))

    for step in (1, 2):
        metric_logger.log({"loss": 0.5})
        metric_logger.report(step)

    reported = [report.body["values"] for report, _ in read_spool(spool_file(tmp_path, 1))]
    assert reported == [{"loss": 0.5, "holdfast/loading": 0.5}, {"loss": 0.5}]


def test_nothing_is_read_before_the_interval_ends() -> None:
    assert RuntimeMetrics(HeartbeatWriter(), CPU).read_if_due() == {}


def test_rates_count_training_time_only() -> None:
    heartbeat = HeartbeatWriter()
    runtime_metrics = RuntimeMetrics(heartbeat, CPU)

    add_time(heartbeat, starting=60, restoring=30, loading=1, stepping=3)
    for step in range(8):
        runtime_metrics.count_step()
        runtime_metrics.count_tokens(torch.tensor(100) if step % 2 else 100)
    first = runtime_metrics.read()
    add_time(heartbeat, stepping=2)
    second = runtime_metrics.read()

    assert first[RuntimeMetricName.STEPS] == 8 / 4
    assert first[RuntimeMetricName.TOKENS] == 800 / 4
    assert not {RuntimeMetricName.STEPS, RuntimeMetricName.TOKENS} & second.keys()


class Clock:
    """A clock that only the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000_000
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now_ns)

    def train(
        self,
        metrics: RuntimeMetrics,
        heartbeat: HeartbeatWriter,
        *,
        loading_s: float = 0.01,
        stepping_s: float = 0.09,
        saving_s: float = 0.0,
    ) -> None:
        """Make a step, as the loop of a run does."""
        for phase, seconds in (
            (Phase.SAVING, saving_s),
            (Phase.LOADING, loading_s),
            (Phase.STEPPING, stepping_s),
        ):
            if seconds or phase is not Phase.SAVING:
                heartbeat.enter(phase)
            if phase is Phase.STEPPING:
                metrics.count_batch(torch.zeros(4, 16, dtype=torch.int64))
            self.now_ns += int(seconds * 1e9)
        metrics.count_step()


def test_stalls_are_no_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    heartbeat = HeartbeatWriter()
    metrics = RuntimeMetrics(heartbeat, CPU, world_size=2)
    metrics.begin()
    first_step: dict[str, float] = {"stepping_s": 600.0}
    steps = [first_step, {"stepping_s": 40.0}, *[{}] * 98, {"loading_s": 20.0}]

    for step in steps:
        clock.train(metrics, heartbeat, **step)
    found = metrics.read()

    assert found[RuntimeMetricName.STEPS] == pytest.approx(10.0)
    assert found[RuntimeMetricName.SAMPLES] == pytest.approx(80.0)
    assert found[RuntimeMetricName.TOKENS] == pytest.approx(1280.0)
    assert found[RuntimeMetricName.STALLED] == pytest.approx(59.9 / 69.9, rel=1e-2)
    assert RuntimeMetricName.COMPUTE_SECONDS not in found, "communication is not measured"
    assert RuntimeMetricName.MFU not in found


def test_parts_of_a_step_add_up_to_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    heartbeat = HeartbeatWriter()
    metrics = RuntimeMetrics(heartbeat, CPU)
    metrics.watch(FakeDdp({name: ns * 100_000 for name, ns in STEP.items()}))  # type: ignore[arg-type]
    metrics.begin()

    for step in range(101):
        clock.train(metrics, heartbeat, saving_s=2.0 if step == 50 else 0.0)
    found = metrics.read()

    parts = {
        RuntimeMetricName.DATA_SECONDS: 0.01,
        RuntimeMetricName.COMPUTE_SECONDS: 0.06,
        RuntimeMetricName.COMMUNICATION_SECONDS: 0.03,
        RuntimeMetricName.SAVING_SECONDS: 0.02,
    }
    assert {name: found[name] for name in parts} == pytest.approx(parts)
    assert 1 / found[RuntimeMetricName.STEPS] == pytest.approx(sum(parts.values()))


def test_parts_that_are_not_measured_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework that owns the loop does not show when it waits for data."""
    clock = Clock(monkeypatch)
    heartbeat = HeartbeatWriter()
    metrics = RuntimeMetrics(heartbeat, CPU)
    heartbeat.enter(Phase.STEPPING)
    metrics.begin()

    for _ in range(10):
        clock.now_ns += 100_000_000
        metrics.count_samples(8)
        metrics.count_step()
    found = metrics.read()

    assert found[RuntimeMetricName.SAMPLES] == pytest.approx(80.0)
    unknown = {
        RuntimeMetricName.LOADING,
        RuntimeMetricName.DATA_SECONDS,
        RuntimeMetricName.COMPUTE_SECONDS,
    }
    assert not unknown & found.keys()


def test_time_after_the_loop_is_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    heartbeat = HeartbeatWriter()
    metrics = RuntimeMetrics(heartbeat, CPU)
    metrics.begin()

    for _ in range(10):
        clock.train(metrics, heartbeat)
    heartbeat.enter(Phase.FINISHED)
    clock.now_ns += 600_000_000_000

    assert metrics.read()[RuntimeMetricName.STEPS] == pytest.approx(10.0)


def test_logged_tokens_precede_counted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    heartbeat = HeartbeatWriter()
    metrics = RuntimeMetrics(heartbeat, CPU)
    metrics.begin()

    for _ in range(10):
        metrics.count_tokens(7)
        clock.train(metrics, heartbeat)

    assert metrics.read()[RuntimeMetricName.TOKENS] == pytest.approx(70.0)


SCRIPT = """
import torch
from holdfast_worker import Run
from holdfast_worker.telemetry import runtime_metrics

runtime_metrics.INTERVAL_S = 0.0
run = Run.start()
model = run.wrap(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters())
run.track(model=model, optimizer=optimizer)
for x_BD in run.steps([torch.ones(4, 8)] * 5, total=5):
    optimizer.zero_grad()
    loss = model(x_BD).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    run.log(loss=loss, grad_norm=norm, tokens=x_BD.numel() * run.world_size)
"""


def test_run_reports_loss_rates_waiting_times_and_memory(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    codes = driver.run_ranks(2, str(script))

    points = [report.body["values"] for report in driver.reports(ReportKind.PROGRESS)]
    assert codes == [0, 0]
    assert isinstance(points[-1], dict)
    assert points[-1].keys() >= {
        *("loss", "grad_norm"),
        RuntimeMetricName.STEPS,
        RuntimeMetricName.TOKENS,
        RuntimeMetricName.SAMPLES,
        RuntimeMetricName.DATA_SECONDS,
        RuntimeMetricName.COMPUTE_SECONDS,
        RuntimeMetricName.COMMUNICATION_SECONDS,
        RuntimeMetricName.SAVING_SECONDS,
        RuntimeMetricName.LOADING,
        RuntimeMetricName.COMMUNICATION,
        RuntimeMetricName.HOST_MEMORY,
    }
    assert points[-1][RuntimeMetricName.TOKENS] == pytest.approx(
        64 * points[-1][RuntimeMetricName.STEPS]
    )


@pytest.mark.parametrize(
    ("overlap", "share", "patterns"),
    [(200, "30%", [FailurePattern.SLOW_NETWORK]), (400, "", [])],
)
def test_gradient_wait_over_a_fifth_of_a_step_gives_a_hint(
    overlap: int, share: str, patterns: list[FailurePattern]
) -> None:
    """From DDP's timings to the message that users read."""
    runtime_metrics = RuntimeMetrics(HeartbeatWriter(), CPU)
    runtime_metrics.watch(FakeDdp({**STEP, "backward_compute_comm_overlap_time": overlap}))  # type: ignore[arg-type]
    points = [
        Point(attempt=1, n=n, at=at(n), step=n, values=runtime_metrics.read()) for n in range(1, 41)
    ]

    hints = find_hints([submitted()], points)

    assert [hint.pattern for hint in hints] == patterns
    assert all(share in hint.evidence[0].text for hint in hints)


def test_gpu_memory_is_the_peak_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"cuda:0": 2e9, "cuda:1": 3e9}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peaks[str(device)])
    monkeypatch.setitem(sys.modules, "pynvml", None)  # Not installed.
    runtime_metrics = RuntimeMetrics(HeartbeatWriter(), torch.device("cuda", 1))

    first = runtime_metrics.read()
    peaks["cuda:1"] = 5e9
    second = runtime_metrics.read()

    assert first[RuntimeMetricName.GPU_MEMORY] == 3e9
    assert second[RuntimeMetricName.GPU_MEMORY] == 5e9
    assert RuntimeMetricName.GPU_MEMORY not in RuntimeMetrics(HeartbeatWriter(), CPU).read()
