"""Stall detection: no rank made a step within the limit. Pure.

It relies on step counters, as CPU and GPU load shows little: a rank that waits for another may be busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from holdfast_worker.protocol.policies import MaxStall, StallDetection
from holdfast_worker.watchdog.heartbeat import Heartbeat

MIN_LIMIT_S: Final = 900.0
"""Minimum limit with `auto`.
A lower value ends a run during an evaluation without heartbeats; a higher value pays longer for nodes that hang."""
MEDIAN_FACTOR: Final = 10.0
"""Limit with `auto` in median step durations.
A lower value ends slow runs; a higher value pays longer for nodes that hang."""
LONGEST_FACTOR: Final = 2.0
"""Limit with `auto` in durations of the longest completed step.
A lower value ends a run whose second evaluation takes slightly longer than the first; a higher value waits for hours after one
step of an hour."""
FIRST_STEP_LIMIT_S: Final = 3600.0
"""Minimum limit before the first step of an attempt.
An attempt first reads a checkpoint, compiles the model and finds data. A lower value ends every slow start; a higher value pays
for a start that hangs."""
PARTIAL_VIEW_FACTOR: Final = 4.0
"""Factor of the limit if some ranks are not visible and the visible ones only wait.
A lower value ends a run whose rank 0 evaluates out of sight; a higher value pays longer for nodes that wait for a lost one."""
MAX_GAP_S: Final = 10.0
"""Longest gap between two checks.
After a longer one, as on a suspended machine, the count restarts. A lower value never detects a stall on a busy machine; a
higher value blames the ranks for the gap."""
JITTER_S: Final = 1.0
"""Delay of a message, by which the last change of a rank on another node appears too late.
A lower value sees progress where there is none; a higher value misses progress."""
WINDOW_STEPS: Final = 101
"""Number of steps for the median.
A lower value makes it noisy; a higher value adapts slowly to longer steps."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A stall of all ranks."""

    for_s: float
    step: int
    """Number of steps completed before."""


class StallDetector:
    """Detects stalls from periodic heartbeats of all known ranks."""

    def __init__(self, max_stall: MaxStall) -> None:
        self._max_stall = max_stall
        self._checked_s: float | None = None
        self._not_before_s = 0.0
        self._step = 0
        self._stepped_s = 0.0
        self._steps_s: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._longest_s = 0.0

    def check(
        self, now_s: float, heartbeats: Sequence[Heartbeat], *, is_whole: bool
    ) -> Stall | None:
        """The stall, if any; None while it is unknown. `is_whole`: the heartbeats are of all ranks."""
        is_blind = self._checked_s is None or now_s - self._checked_s > MAX_GAP_S
        self._checked_s = now_s
        if is_blind:
            self._not_before_s = self._stepped_s = now_s
        self._record_steps(now_s, heartbeats)
        if self._max_stall.detection is StallDetection.OFF or not any(
            each.is_busy for each in heartbeats
        ):
            return None
        last_s = max(self._not_before_s, *(each.since_s for each in heartbeats))
        for_s = now_s - last_s
        if for_s <= self.limit_s(heartbeats, is_whole=is_whole):
            return None
        return Stall(for_s, max(each.step for each in heartbeats))

    def limit_s(self, heartbeats: Sequence[Heartbeat], *, is_whole: bool) -> float:
        """The current stall limit."""
        limit_s = float(self._max_stall.limit_s)
        if self._max_stall.detection is StallDetection.AUTO:
            usual_s = median(self._steps_s) if self._steps_s else 0.0
            limit_s = max(MIN_LIMIT_S, MEDIAN_FACTOR * usual_s, LONGEST_FACTOR * self._longest_s)
        if not any(each.steps_here for each in heartbeats):
            limit_s = max(limit_s, FIRST_STEP_LIMIT_S)
        elif not is_whole and all(each.is_waiting for each in heartbeats if each.is_busy):
            limit_s = max(PARTIAL_VIEW_FACTOR * limit_s, FIRST_STEP_LIMIT_S)
        return limit_s

    def _record_steps(self, now_s: float, heartbeats: Sequence[Heartbeat]) -> None:
        """Record durations of steps, except the first one, which is longer than usual."""
        step = max((each.step for each in heartbeats), default=0)
        if step == self._step:
            return
        made = max(each.steps_here for each in heartbeats)
        if self._stepped_s and made > step - self._step > 0:
            took_s = now_s - self._stepped_s
            self._steps_s.append(took_s / (step - self._step))
            self._longest_s = max(self._longest_s, took_s)
        self._step, self._stepped_s = step, now_s


def has_progressed(before: Sequence[Heartbeat], after: Sequence[Heartbeat]) -> bool:
    """Whether any rank has progressed in between."""
    then = {each.rank: each for each in before}
    return any(
        (each.position, each.step) != (then[each.rank].position, then[each.rank].step)
        or each.since_s > then[each.rank].since_s + JITTER_S
        for each in after
        if each.rank in then
    )
