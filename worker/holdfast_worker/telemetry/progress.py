"""Progress lines in the log of rank 0, so that a script without output shows that it trains."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Final

from holdfast_worker.console import STEP, log_info

FIRST_LINE_S: Final = 1.0
"""Time until the first line.
A lower value shows the speed of a few slow steps; a higher value delays the first sign of progress."""
INTERVAL_S: Final = 10.0
"""Interval of lines.
A lower value fills the log of a long run; a higher value leaves a person waiting."""
MAX_METRICS: Final = 6
"""Metrics in a line.
A lower value may omit the loss; a higher value makes lines wrap."""


class ProgressLog:
    """Logs step, speed, metrics and newest checkpoint about every 10 s.

    It is called with values that were read for a metric point, so that it never waits for the GPU.
    """

    def __init__(
        self,
        step: int,
        total: int | None,
        checkpoint_step: Callable[[], int] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The loop begins now, after `step` steps, and ends after `total` if that is known.

        `checkpoint_step` returns the step of the newest checkpoint, 0 without one; None: the run saves nothing.
        """
        self._total = total
        self._checkpoint_step = checkpoint_step
        self._clock = clock
        self._logged_step, self._logged_s = step, clock()
        self._interval_s = FIRST_LINE_S

    def write_if_due(self, step: int, values: Mapping[str, float]) -> None:
        """Log a line for `step` completed steps and the values of the last one, if one is due."""
        now_s = self._clock()
        elapsed_s = now_s - self._logged_s
        if elapsed_s < self._interval_s:
            return
        log_info(self._line(step, (step - self._logged_step) / elapsed_s, values))
        self._logged_step, self._logged_s = step, now_s
        self._interval_s = INTERVAL_S

    def _line(self, step: int, steps_per_s: float, values: Mapping[str, float]) -> str:
        of_total = "" if self._total is None else f" of {self._total:,}"
        speed = f"{steps_per_s:,.0f}" if steps_per_s >= 100 else f"{steps_per_s:.3g}"
        shown = itertools.islice(values.items(), MAX_METRICS)
        parts = [f"{STEP}{step:,}{of_total}", f"{speed} steps/s"]
        parts += [f"{name} {value:.4g}" for name, value in shown]
        if self._checkpoint_step:
            saved = self._checkpoint_step()
            parts.append(f"checkpoint at step {saved:,}" if saved else "no checkpoint yet")
        return ", ".join(parts)
