"""The meter: what the script logs, reported at a pace that costs nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from holdfast_worker.distributed.sharding import gathered
from holdfast_worker.protocol.commit_summary import MetricValue
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.trackers import TrackerRun

Scalar = float | int | Tensor

Readings = Callable[[], Mapping[str, MetricValue]]
"""What was logged up to a moment, to be read later and in another thread."""

INTERVAL_S: Final = 1.0
"""Between two points. Shorter waits for the GPU more often and fills the database, longer makes a curve of steps."""


class MetricLogger:
    """The latest values, by name. Tensors are kept as they are until a point is due: reading one waits for the GPU."""

    def __init__(
        self, reports: Reporter, vitals: Callable[[], Mapping[str, float]] = dict[str, float]
    ) -> None:
        """`vitals`: what else is known whenever a point is due; seldom anything."""
        self._reports = reports
        self._vitals = vitals
        self._values: dict[str, Scalar] = {}
        self._fresh: set[str] = set()
        self._steps: dict[str, int] = {}
        self._reported_s = -math.inf
        self._reported_step = -1
        self.curve: TrackerRun | None = None
        """Where points go beside the reports; None: nowhere."""

    def log(self, values: dict[str, Scalar]) -> None:
        """Remember values of the step under way.

        Raises:
            ValueError: one is not a single number.
        """
        for name, value in values.items():
            if isinstance(value, Tensor) and value.numel() != 1:
                raise ValueError(f"{name} has {value.numel()} values; log one number")
            # Gathered now, as all ranks log; when it is read, each does so in its own time.
            self._values[name] = gathered(value.detach()) if isinstance(value, Tensor) else value
            self._fresh.add(name)

    def tick(self, step: int) -> None:
        """So many steps are done; report if it is time."""
        self._steps.update(dict.fromkeys(self._fresh, step))
        self._fresh.clear()
        if time.monotonic() - self._reported_s >= INTERVAL_S:
            self.report(step)

    def report(self, step: int) -> None:
        """Report now, unless this step was reported."""
        if step == self._reported_step:
            return
        logged = {name: float(value) for name, value in self._values.items()}
        point = {**logged, **self._vitals()}
        self._reports.progress(step, point)
        if self.curve:
            self.curve.add(step, point)
        self._reported_s = time.monotonic()
        self._reported_step = step

    def end_curve(self) -> None:
        """There are no more points."""
        if self.curve:
            self.curve.end()

    def readings(self) -> Readings:
        """The last value of each name up to the step that was done last. Nothing is waited for before it is read."""
        held = {name: (_hold(self._values[name]), step) for name, step in self._steps.items()}
        return lambda: {
            name: MetricValue(_finite(read()), step) for name, (read, step) in held.items()
        }


def nothing_logged() -> Mapping[str, MetricValue]:
    """The readings of a script that logs nothing, and of all ranks but the first."""
    return {}


def _hold(value: Scalar) -> Callable[[], float]:
    """A value as it is now, whatever the script does to its tensor later; read without a wait for the GPU until then."""
    if not (isinstance(value, Tensor) and value.is_cuda):
        number = float(value)
        return lambda: number
    copy, is_made = value.clone(), torch.cuda.Event()  # type: ignore[no-untyped-call]
    is_made.record(torch.cuda.current_stream(copy.device))

    def read() -> float:
        # Whoever reads is in another thread, whose stream does not wait for that of the training.
        is_made.synchronize()
        return float(copy)

    return read


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
