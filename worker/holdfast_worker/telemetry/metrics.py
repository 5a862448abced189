"""Metrics that the script logs, reported at most once a second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from holdfast_worker.distributed.sharding import full_tensor
from holdfast_worker.protocol.commit_summary import MetricValue
from holdfast_worker.run_dir import ExitReason
from holdfast_worker.telemetry.progress import ProgressLog
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.trackers import TrackerRun

Scalar = float | int | Tensor

Readings = Callable[[], Mapping[str, MetricValue]]
"""Last metric values up to a step, which can be read later and in a different thread."""

INTERVAL_S: Final = 1.0
"""Interval of points.
A lower value waits for the GPU more often and fills the database; a higher value makes series coarse."""


class MetricLogger:
    """Latest metric values by name.

    Tensors are read when a point is due, as a read waits for the GPU.
    """

    def __init__(
        self,
        reports: Reporter,
        runtime_metrics: Callable[[], Mapping[str, float]] = dict[str, float],
    ) -> None:
        """`runtime_metrics` returns additional values when a point is due; often none."""
        self._reports = reports
        self._runtime_metrics = runtime_metrics
        self._values: dict[str, Scalar] = {}
        self._logged_this_step: set[str] = set()
        self._steps: dict[str, int] = {}
        self._reported_s = -math.inf
        self._reported_step = -1
        self.tracker: TrackerRun | None = None
        """A tracker that also receives points; None without a tracker."""
        self.progress: ProgressLog | None = None
        """Progress lines of rank 0; None before the loop, and in a framework, which has its own."""

    def log(self, values: dict[str, Scalar]) -> None:
        """Record values of the current step.

        Raises:
            ValueError: a value is not a single number.
        """
        for name, value in values.items():
            if isinstance(value, Tensor) and value.numel() != 1:
                raise ValueError(f"{name} has {value.numel()} values; log one number")
            # A collective, so it runs now, as all ranks log; each rank reads the value at its own time.
            self._values[name] = full_tensor(value.detach()) if isinstance(value, Tensor) else value
            self._logged_this_step.add(name)

    def end_step(self, step: int) -> None:
        """Complete a step, and report a point if one is due."""
        self._steps.update(dict.fromkeys(self._logged_this_step, step))
        self._logged_this_step.clear()
        if time.monotonic() - self._reported_s >= INTERVAL_S:
            self.report(step)

    def report(self, step: int) -> None:
        """Report a point now, unless this step was reported."""
        if step == self._reported_step:
            return
        logged = {name: float(value) for name, value in self._values.items()}
        point = {**logged, **self._runtime_metrics()}
        self._reports.progress(step, point)
        if self.progress:
            self.progress.write_if_due(step, logged)
        if self.tracker:
            self.tracker.write(step, point)
        self._reported_s = time.monotonic()
        self._reported_step = step

    def close_tracker(self, left: ExitReason) -> None:
        """Close the tracker, if any, which shows why this rank left."""
        if self.tracker:
            self.tracker.close(left)

    def readings(self) -> Readings:
        """Last values up to the last completed step; waits for the GPU only when they are read."""
        held = {
            name: (_deferred_float(self._values[name]), step) for name, step in self._steps.items()
        }
        return lambda: {
            name: MetricValue(_finite(read()), step) for name, (read, step) in held.items()
        }


def no_readings() -> Mapping[str, MetricValue]:
    """The empty readings of a script without metrics, and of ranks other than 0."""
    return {}


def _deferred_float(value: Scalar) -> Callable[[], float]:
    """A copy of the current value, independent of later changes.

    Waits for the GPU when it is read.
    """
    if not (isinstance(value, Tensor) and value.is_cuda):
        number = float(value)
        return lambda: number
    copy, is_made = value.clone(), torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_made.record(torch.cuda.current_stream(copy.device))

    def read() -> float:
        # The reader is in a different thread, whose stream does not wait for that of the training.
        is_made.synchronize()
        return float(copy)

    return read


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
