"""The meter: what the script logs, reported at a pace that costs nothing."""

from __future__ import annotations

import math
import time
from typing import Final

from torch import Tensor

from holdfast_worker.reports import Reports

Scalar = float | int | Tensor

INTERVAL_S: Final = 1.0
"""Between two points. Shorter waits for the GPU more often and fills the database, longer makes a curve of steps."""


class Meter:
    """The latest values, by name. Tensors are kept as they are until a point is due: reading one waits for the GPU."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._values: dict[str, Scalar] = {}
        self._reported_s = -math.inf
        self._reported_step = -1

    def log(self, values: dict[str, Scalar]) -> None:
        """Remember values of the step under way.

        Raises:
            ValueError: one is not a single number.
        """
        for name, value in values.items():
            if isinstance(value, Tensor) and value.numel() != 1:
                raise ValueError(f"{name} has {value.numel()} values; log one number")
            self._values[name] = value.detach() if isinstance(value, Tensor) else value

    def tick(self, step: int) -> None:
        """So many steps are done; report if it is time."""
        if time.monotonic() - self._reported_s >= INTERVAL_S:
            self.report(step)

    def report(self, step: int) -> None:
        """Report now, unless this step was reported."""
        if step == self._reported_step:
            return
        self._reports.progress(step, {name: float(value) for name, value in self._values.items()})
        self._reported_s = time.monotonic()
        self._reported_step = step
