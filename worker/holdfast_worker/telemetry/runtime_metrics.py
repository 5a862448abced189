"""Runtime metrics of a run: step and token rates, waiting times, memory and GPU utilization."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from holdfast_worker.protocol.reports import RuntimeMetricName
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase

INTERVAL_S: Final = 10.0
"""Interval of readings.
A lower value adds points that hardly change; a higher value shows problems later."""

TOKENS: Final = "tokens"
"""Metric of a script: the tokens of a step, over all ranks."""
_BEFORE_TRAINING: Final = frozenset({Phase.STARTING, Phase.RESTORING, Phase.PREPARING})
_RESIDENT: Final = Path("/proc/self/statm")


class RuntimeMetrics:
    """Measures the runtime metrics of a rank."""

    def __init__(self, heartbeat: HeartbeatWriter, device: torch.device) -> None:
        self._heartbeat = heartbeat
        self._device = device
        self._models: list[DistributedDataParallel] = []
        self._spent_ns = dict(heartbeat.spent_ns)
        self._steps = 0
        self._tokens: Tensor | float = 0.0
        self._read_s = time.monotonic()

    def watch(self, model: DistributedDataParallel) -> None:
        """Measure how long this model waits for the gradients of other ranks."""
        self._models.append(model)

    def count_step(self) -> None:
        """Count a completed step; call it before the reading that may be due after it."""
        self._steps += 1

    def count_tokens(self, tokens: Tensor | float) -> None:
        """Add the tokens of a step; a tensor is read when a reading is due."""
        self._tokens = self._tokens + (tokens.detach() if isinstance(tokens, Tensor) else tokens)

    def read_if_due(self) -> dict[str, float]:
        """All metrics if a reading is due; otherwise empty."""
        if time.monotonic() - self._read_s < INTERVAL_S:
            return {}
        self._read_s = time.monotonic()
        return self.read()

    def read(self) -> dict[str, float]:
        """All available metrics; rates and shares of time are since the last reading."""
        spent_ns = self._spent_since_last_reading()
        training_s = (
            sum(ns for phase, ns in spent_ns.items() if phase not in _BEFORE_TRAINING) / 1e9
        )
        steps, tokens = self._counted_since_last_reading()
        known = {
            RuntimeMetricName.STEPS: steps / training_s if steps and training_s else None,
            RuntimeMetricName.TOKENS: tokens / training_s if tokens and training_s else None,
            RuntimeMetricName.LOADING: _loading_share(spent_ns),
            RuntimeMetricName.COMMUNICATION: self._communication(),
            RuntimeMetricName.HOST_MEMORY: _resident_bytes(),
            RuntimeMetricName.GPU_MEMORY: self._allocated(),
            RuntimeMetricName.GPU_UTILIZATION: self._utilization(),
        }
        return {name: value for name, value in known.items() if value is not None}

    def _spent_since_last_reading(self) -> dict[Phase, int]:
        before, self._spent_ns = self._spent_ns, dict(self._heartbeat.spent_ns)
        return {phase: ns - before.get(phase, 0) for phase, ns in self._spent_ns.items()}

    def _counted_since_last_reading(self) -> tuple[int, float]:
        """Completed steps and logged tokens."""
        counted = self._steps, float(self._tokens)
        self._steps, self._tokens = 0, 0.0
        return counted

    def _communication(self) -> float | None:
        """Share of the step that DDP measured last: each of its first ten, and every hundredth."""
        steps = [
            exposed_communication(model._get_ddp_logging_data())  # type: ignore[no-untyped-call]  # noqa: SLF001 - the only source
            for model in self._models
        ]
        waited, whole = sum(s[0] for s in steps), sum(s[1] for s in steps)
        return waited / whole if whole else None

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


def _loading_share(spent_ns: Mapping[Phase, int]) -> float | None:
    whole_ns = sum(spent_ns.values())
    return spent_ns.get(Phase.LOADING, 0) / whole_ns if whole_ns else None


def _resident_bytes() -> float | None:
    """Resident memory of this process in bytes; None if the kernel does not report it."""
    try:
        pages = int(_RESIDENT.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return float(pages * os.sysconf("SC_PAGESIZE"))
