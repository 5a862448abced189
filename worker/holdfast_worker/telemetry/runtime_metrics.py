"""Vitals of a run: what it waits for and how much memory it has, measured at a pace that costs nothing."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from holdfast_worker.protocol.reports import Vital
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter, Phase

INTERVAL_S: Final = 10.0
"""Between two readings. Shorter fills curves with what hardly changes, longer sees what is wrong later."""

_RESIDENT: Final = Path("/proc/self/statm")


class RuntimeMetrics:
    """Those of the first rank."""

    def __init__(self, beat: HeartbeatWriter, device: torch.device) -> None:
        self._beat = beat
        self._device = device
        self._models: list[DistributedDataParallel] = []
        self._spent_ns = dict(beat.spent_ns)
        self._read_s = time.monotonic()

    def watch(self, model: DistributedDataParallel) -> None:
        """From now on read how long this model waits for the gradients of other ranks."""
        self._models.append(model)

    def due(self) -> dict[str, float]:
        """All that is known, if it is time; else nothing."""
        if time.monotonic() - self._read_s < INTERVAL_S:
            return {}
        self._read_s = time.monotonic()
        return self.read()

    def read(self) -> dict[str, float]:
        """All that is known, since the last time where it is a share."""
        known = {
            Vital.LOADING: self._loading(),
            Vital.COMMUNICATION: self._communication(),
            Vital.HOST_MEMORY: _resident(),
            Vital.GPU_MEMORY: self._allocated(),
            Vital.GPU_UTILIZATION: self._utilization(),
        }
        return {name: value for name, value in known.items() if value is not None}

    def _loading(self) -> float | None:
        before, self._spent_ns = self._spent_ns, dict(self._beat.spent_ns)
        spent = {phase: ns - before.get(phase, 0) for phase, ns in self._spent_ns.items()}
        whole = sum(spent.values())
        return spent.get(Phase.LOADING, 0) / whole if whole else None

    def _communication(self) -> float | None:
        """Of the step that DDP measured last; it does so in its first ten, and in every hundredth."""
        steps = [
            exposed(model._get_ddp_logging_data())  # type: ignore[no-untyped-call]  # noqa: SLF001 - told nowhere else
            for model in self._models
        ]
        waited, whole = sum(s[0] for s in steps), sum(s[1] for s in steps)
        return waited / whole if whole else None

    def _allocated(self) -> float | None:
        if self._device.type != "cuda":
            return None
        return float(torch.cuda.max_memory_allocated(self._device))

    def _utilization(self) -> float | None:
        """Of the last moment, as NVIDIA's driver says it; None where its package for Python is not installed."""
        if self._device.type != "cuda":
            return None
        try:
            nvml = importlib.import_module("pynvml")
        except ModuleNotFoundError:
            return None
        try:
            return torch.cuda.utilization(self._device) / 100
        except (nvml.NVMLError, RuntimeError):  # As of a slice of a GPU, of which nobody knows.
            return None


def exposed(told: dict[str, Any]) -> tuple[int, int]:
    """Nanoseconds in which a step only waited for gradients, and of the whole pass; of what DDP's own clock says.

    The wait begins with the first bucket that is sent and ends with the last one; what is computed meanwhile costs nothing.
    """
    forward, backward = told.get("forward_compute_time", 0), told.get("backward_compute_time", 0)
    together = told.get("backward_compute_comm_overlap_time", 0)
    waited = max(0, told.get("backward_comm_time", 0) - together)
    return waited, forward + backward + waited


def _resident() -> float | None:
    """Bytes of this process that are in memory; None where the kernel does not say."""
    try:
        pages = int(_RESIDENT.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return float(pages * os.sysconf("SC_PAGESIZE"))
