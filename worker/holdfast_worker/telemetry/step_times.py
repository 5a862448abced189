"""Times of steps, and the part of them in which training did not advance as usual."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Final

WINDOW: Final = 64
"""Newest steps that define the usual step.
A lower value follows single steps; a higher value takes a lasting change for stalls for longer."""
MIN_STEPS: Final = 8
"""Steps before the usual step is known.
A lower value takes the start of a run for usual; a higher value counts a slow start as training."""
STALL_FACTOR: Final = 10.0
"""Multiple of the usual step from which a step has stalled.
A lower value excludes uneven batches; a higher value counts stalls as training."""
MIN_STALL_NS: Final = 1_000_000_000
"""Time beyond the usual step from which a step has stalled.
A lower value excludes pauses of the garbage collector; a higher value counts short stalls as training."""


@dataclass(slots=True)
class StalledTime:
    """Nanoseconds by which stalled steps took longer than the usual one."""

    loading_ns: int = 0
    """While they waited for data."""
    other_ns: int = 0

    @property
    def total_ns(self) -> int:
        """All of it."""
        return self.loading_ns + self.other_ns


class StepTimes:
    """Finds stalled steps: those that take much longer than the median of the steps before.

    A stall is, for example, a hung loader, a wait for a replaced rank, an evaluation in the loop, or the compilation in a first step.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self._usual_ns = self._usual_loading_ns = 0.0
        self._limit_ns = math.inf
        self._unjudged = 0
        """Newest steps since the last `take` for which no usual step was known."""
        self._stalled = StalledTime()

    def add(self, step_ns: int, loading_ns: int) -> None:
        """Add the time of a step without saves, and the part of it that waited for data."""
        self._recent.append((step_ns, loading_ns))
        if step_ns > self._limit_ns:
            self._add_stall(step_ns, loading_ns)
        elif self._limit_ns == math.inf:
            self._unjudged += 1
            if len(self._recent) >= MIN_STEPS:
                self._update()
                for step in list(self._recent)[-self._unjudged :]:
                    if step[0] > self._limit_ns:
                        self._add_stall(*step)
                self._unjudged = 0

    def take(self) -> StalledTime:
        """The stalled time since the last call."""
        stalled, self._stalled = self._stalled, StalledTime()
        self._unjudged = 0
        if len(self._recent) >= MIN_STEPS:
            self._update()
        return stalled

    def _add_stall(self, step_ns: int, loading_ns: int) -> None:
        over_ns = round(step_ns - self._usual_ns)
        loading_over_ns = min(over_ns, max(0, round(loading_ns - self._usual_loading_ns)))
        self._stalled.loading_ns += loading_over_ns
        self._stalled.other_ns += over_ns - loading_over_ns

    def _update(self) -> None:
        self._usual_ns = statistics.median(step_ns for step_ns, _ in self._recent)
        self._usual_loading_ns = statistics.median(loading_ns for _, loading_ns in self._recent)
        self._limit_ns = max(STALL_FACTOR * self._usual_ns, self._usual_ns + MIN_STALL_NS)
