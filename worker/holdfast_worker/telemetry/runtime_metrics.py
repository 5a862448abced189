"""Runtime metrics of a run: rates, parts of a step, waits, memory and GPU utilization."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from holdfast_worker.protocol.reports import RuntimeMetricName
from holdfast_worker.telemetry.batch_size import TokenCount, batch_size
from holdfast_worker.telemetry.flops import ModelFlops
from holdfast_worker.telemetry.step_times import StalledTime, StepTimes
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase

INTERVAL_S: Final = 10.0
"""Interval of readings.
A lower value adds points that hardly change; a higher value shows problems later."""

TOKENS: Final = "tokens"
"""Metric of a script: the tokens of a step, over all ranks."""
_OUTSIDE_TRAINING: Final = frozenset(
    {Phase.STARTING, Phase.RESTORING, Phase.PREPARING, Phase.FINISHED}
)
_RESIDENT: Final = Path("/proc/self/statm")
_Values = dict[RuntimeMetricName, float | None]


class RuntimeMetrics:
    """Measures the runtime metrics of a rank."""

    def __init__(
        self, heartbeat: HeartbeatWriter, device: torch.device, world_size: int = 1
    ) -> None:
        self._heartbeat = heartbeat
        self._device = device
        self._world_size = world_size
        self._ddp_models: list[DistributedDataParallel] = []
        self.model_flops = ModelFlops(device)
        self._step_times = StepTimes()
        self._is_warming_up = False
        self._spent_ns = dict(heartbeat.spent_ns)
        self._step_ended_ns = self._waited_ns = self._saved_ns = 0
        self._steps = self._samples = self._counted_tokens = 0
        self._tokens: Tensor | float = 0.0
        self._read_s = time.monotonic()

    def watch(self, model: DistributedDataParallel) -> None:
        """Measure how long this model waits for the gradients of other ranks."""
        self._ddp_models.append(model)

    def watch_tracked(self, model: object) -> None:
        """Count the operations of a model that a script tracks without wrapping it."""
        if isinstance(model, nn.Module) and not self.model_flops.has_model:
            self.model_flops.watch(model)

    def begin(self) -> None:
        """Begin the first step now.

        It is no part of the rates: it compiles, opens files and connects ranks.
        """
        self._is_warming_up = True

    def count_batch(self, batch: object, tokens: TokenCount[Any] | None = None) -> None:
        """Count the samples and tokens of a rank's next step."""
        in_samples, in_tokens = batch_size(batch, tokens)
        self._samples += in_samples
        self._counted_tokens += in_tokens

    def count_samples(self, samples: int) -> None:
        """Count the samples of a rank's step, where a framework has the batches."""
        self._samples += samples

    def count_other_steps(self, steps: int) -> None:
        """Count steps that a framework makes between two calls of `count_step`."""
        self._steps += steps

    def count_step(self) -> None:
        """Count a completed step; call it before the reading that may be due after it."""
        now_ns, spent_ns = time.monotonic_ns(), self._heartbeat.spent_ns
        if self._is_warming_up:
            self._begin_measuring()
            return
        waited_ns, saved_ns = spent_ns.get(Phase.LOADING, 0), spent_ns.get(Phase.SAVING, 0)
        if self._step_ended_ns:
            step_ns = now_ns - self._step_ended_ns - saved_ns + self._saved_ns
            self._step_times.add(step_ns, waited_ns - self._waited_ns)
        self._step_ended_ns, self._waited_ns, self._saved_ns = now_ns, waited_ns, saved_ns
        self._steps += 1

    def count_tokens(self, tokens: Tensor | float) -> None:
        """Add the tokens of a step that the script logged, over all ranks.

        A tensor is read when a reading is due.
        """
        self._tokens = self._tokens + (tokens.detach() if isinstance(tokens, Tensor) else tokens)

    def read_if_due(self) -> dict[str, float]:
        """All metrics if a reading is due; otherwise empty."""
        if time.monotonic() - self._read_s < INTERVAL_S:
            return {}
        self._read_s = time.monotonic()
        return self.read()

    def read(self) -> dict[str, float]:
        """All available metrics; rates, parts of a step and shares are since the last reading."""
        spent_ns = self._spent_since_last_reading()
        known = {
            **self._read_steps(spent_ns, self._step_times.take()),
            RuntimeMetricName.LOADING: _share(spent_ns.get(Phase.LOADING), spent_ns),
            RuntimeMetricName.COMMUNICATION: _ratio(*self._communication_ns()),
            RuntimeMetricName.HOST_MEMORY: _resident_bytes(),
            RuntimeMetricName.GPU_MEMORY: self._allocated(),
            RuntimeMetricName.GPU_UTILIZATION: self._utilization(),
        }
        return {name: value for name, value in known.items() if value is not None}

    def _begin_measuring(self) -> None:
        """Begin to measure after the first step."""
        self._is_warming_up = False
        self._spent_ns = self._heartbeat.spent_until_now()
        self._step_ended_ns = time.monotonic_ns()
        self._waited_ns = self._heartbeat.spent_ns.get(Phase.LOADING, 0)
        self._saved_ns = self._heartbeat.spent_ns.get(Phase.SAVING, 0)
        self._counted_since_last_reading()

    def _read_steps(self, spent_ns: Mapping[Phase, int], stalled: StalledTime) -> _Values:
        """Rates, and the parts of a step, without stalls."""
        steps, samples, tokens = self._counted_since_last_reading()
        active_s = (sum(spent_ns.values()) - stalled.total_ns) / 1e9
        if not steps or active_s <= 0:
            return {}
        tokens_per_s = tokens / active_s
        return {
            RuntimeMetricName.STEPS: steps / active_s,
            RuntimeMetricName.SAMPLES: samples / active_s or None,
            RuntimeMetricName.TOKENS: tokens_per_s or None,
            RuntimeMetricName.MFU: self.model_flops.utilization(tokens_per_s / self._world_size)
            if tokens
            else None,
            RuntimeMetricName.STALLED: _share(stalled.total_ns, spent_ns),
            **self._read_parts(spent_ns, stalled, steps, active_s / steps),
        }

    def _read_parts(
        self, spent_ns: Mapping[Phase, int], stalled: StalledTime, steps: int, step_s: float
    ) -> _Values:
        """Seconds of a step by part. A part that cannot be measured is None, and so is the rest."""
        saving_s = spent_ns.get(Phase.SAVING, 0) / 1e9 / steps
        parts: _Values = {RuntimeMetricName.SAVING_SECONDS: saving_s}
        data_s: float | None = None
        if Phase.LOADING in spent_ns:
            data_s = max(0.0, (spent_ns[Phase.LOADING] - stalled.loading_ns) / 1e9 / steps)
            parts[RuntimeMetricName.DATA_SECONDS] = data_s
        working_s = max(0.0, step_s - saving_s - (data_s or 0.0))
        communication_s: float | None = 0.0 if self._world_size == 1 else None
        waited_ns, pass_ns = self._communication_ns()
        if pass_ns:
            communication_s = min(working_s, waited_ns / 1e9)
        parts[RuntimeMetricName.COMMUNICATION_SECONDS] = communication_s
        if data_s is not None and communication_s is not None:
            parts[RuntimeMetricName.COMPUTE_SECONDS] = working_s - communication_s
        return parts

    def _spent_since_last_reading(self) -> dict[Phase, int]:
        """Nanoseconds by phase of training."""
        before, self._spent_ns = self._spent_ns, self._heartbeat.spent_until_now()
        return {
            phase: ns - before.get(phase, 0)
            for phase, ns in self._spent_ns.items()
            if phase not in _OUTSIDE_TRAINING
        }

    def _counted_since_last_reading(self) -> tuple[int, float, float]:
        """Completed steps, and samples and tokens over all ranks."""
        tokens = float(self._tokens) or self._counted_tokens * self._world_size
        counted = self._steps, self._samples * self._world_size, tokens
        self._steps = self._samples = self._counted_tokens = 0
        self._tokens = 0.0
        return counted

    def _communication_ns(self) -> tuple[int, int]:
        """Wait for gradients and whole pass in the step that DDP measured last.

        DDP measures each of its first ten steps, and every hundredth.
        """
        steps = [
            exposed_communication(model._get_ddp_logging_data())  # type: ignore[no-untyped-call]  # noqa: SLF001 - the only source
            for model in self._ddp_models
        ]
        return sum(step[0] for step in steps), sum(step[1] for step in steps)

    def _allocated(self) -> float | None:
        if self._device.type != "cuda":
            return None
        return float(torch.cuda.max_memory_allocated(self._device))

    def _utilization(self) -> float | None:
        """Current utilization from NVIDIA's driver; None if its Python package is not installed."""
        if self._device.type != "cuda":
            return None
        try:
            nvml = importlib.import_module("pynvml")
        except ModuleNotFoundError:
            return None
        try:
            return torch.cuda.utilization(self._device) / 100
        except (nvml.NVMLError, RuntimeError):  # For example, a MIG slice has no value.
            return None


def exposed_communication(times: dict[str, Any]) -> tuple[int, int]:
    """Nanoseconds in which a step only waited for gradients, and of the pass, by DDP's clock.

    Communication lasts from the first sent bucket to the last one; overlap with computation does not count as waiting.
    """
    forward, backward = times.get("forward_compute_time", 0), times.get("backward_compute_time", 0)
    overlap = times.get("backward_compute_comm_overlap_time", 0)
    waited = max(0, times.get("backward_comm_time", 0) - overlap)
    return waited, forward + backward + waited


def _share(ns: int | None, spent_ns: Mapping[Phase, int]) -> float | None:
    return None if ns is None else _ratio(ns, sum(spent_ns.values()))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _resident_bytes() -> float | None:
    """Resident memory of this process in bytes; None if the kernel does not report it."""
    try:
        pages = int(_RESIDENT.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return float(pages * os.sysconf("SC_PAGESIZE"))
