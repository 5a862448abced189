"""A stall: that no rank made a step for too long. Pure.

It is the counters of steps that say so, and never how busy a processor is: one that waits for another may be very busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from holdfast_worker.protocol.policies import MaxStall, Watch
from holdfast_worker.watchdog.heartbeat import Heartbeat

SHORTEST_S: Final = 900.0
"""With `auto`. Longer pays longer for nodes that hang; shorter ends a run that evaluates for a while without a word."""
MEDIANS: Final = 10.0
"""With `auto`, in steps of the usual length. The same prices."""
LONGEST_TIMES: Final = 2.0
"""With `auto`, times the longest step that came to its end. Less ends a run because its second evaluation takes a little
longer than the first; more waits for hours once something has taken an hour."""
FIRST_S: Final = 3600.0
"""Before the first step of an attempt, at least: a large checkpoint is read, a model compiled, data is found. Longer pays
for a start that hangs; shorter never lets one begin that is slow, however often it is tried."""
APART_TIMES: Final = 4.0
"""Times the limit if it is not known where all ranks are, and those that are known only wait. Less ends a run whose first
rank evaluates, unseen from here; more pays longer for nodes that wait for one that is gone."""
BLIND_S: Final = 10.0
"""Between two looks. Who slept for longer, as on a machine that was suspended, does not know what happened meanwhile, and
begins to count anew. Larger blames the ranks for that; smaller never ends anything on a machine that is busy."""
JITTER_S: Final = 1.0
"""What a letter may take on its way, by which a rank of another node seems to have changed later than it did. Larger does not
see that a rank has gone on, smaller sees it where none has."""
REMEMBERED: Final = 101
"""Steps of which the median is taken. More is slow to learn that steps have become longer."""


@dataclass(frozen=True, slots=True)
class Stall:
    """No rank made a step."""

    for_s: float
    step: int
    """Steps that were done before."""


class StallDetector:
    """Looks at all ranks that are known, every now and then, and says when they stand still."""

    def __init__(self, max_stall: MaxStall) -> None:
        self._max_stall = max_stall
        self._looked_s: float | None = None
        self._forgiven_s = 0.0
        self._step = 0
        self._stepped_s = 0.0
        self._steps_s: deque[float] = deque(maxlen=REMEMBERED)
        self._longest_s = 0.0

    def look(self, now_s: float, pulses: Sequence[Heartbeat], *, is_whole: bool) -> Stall | None:
        """Whether they stand still; None as long as they do not, or nobody can say. `is_whole`: these are all ranks."""
        is_blind = self._looked_s is None or now_s - self._looked_s > BLIND_S
        self._looked_s = now_s
        if is_blind:
            self._forgiven_s = self._stepped_s = now_s
        self._learn(now_s, pulses)
        if self._max_stall.watch is Watch.OFF or not any(pulse.is_busy for pulse in pulses):
            return None
        last_s = max(self._forgiven_s, *(pulse.since_s for pulse in pulses))
        for_s = now_s - last_s
        if for_s <= self.limit_s(pulses, is_whole=is_whole):
            return None
        return Stall(for_s, max(pulse.step for pulse in pulses))

    def limit_s(self, pulses: Sequence[Heartbeat], *, is_whole: bool) -> float:
        """How long they may stand still."""
        limit_s = float(self._max_stall.limit_s)
        if self._max_stall.watch is Watch.AUTO:
            usual_s = median(self._steps_s) if self._steps_s else 0.0
            limit_s = max(SHORTEST_S, MEDIANS * usual_s, LONGEST_TIMES * self._longest_s)
        if not any(pulse.steps_here for pulse in pulses):
            limit_s = max(limit_s, FIRST_S)
        elif not is_whole and all(pulse.is_waiting for pulse in pulses if pulse.is_busy):
            limit_s = max(APART_TIMES * limit_s, FIRST_S)
        return limit_s

    def _learn(self, now_s: float, pulses: Sequence[Heartbeat]) -> None:
        """Take note of how long steps take. A first one is not a usual one."""
        step = max((pulse.step for pulse in pulses), default=0)
        if step == self._step:
            return
        made = max(pulse.steps_here for pulse in pulses)
        if self._stepped_s and made > step - self._step > 0:
            took_s = now_s - self._stepped_s
            self._steps_s.append(took_s / (step - self._step))
            self._longest_s = max(self._longest_s, took_s)
        self._step, self._stepped_s = step, now_s


def has_gone_on(before: Sequence[Heartbeat], after: Sequence[Heartbeat]) -> bool:
    """Whether any rank has done anything in between."""
    then = {pulse.rank: pulse for pulse in before}
    return any(
        (pulse.position, pulse.step) != (then[pulse.rank].position, then[pulse.rank].step)
        or pulse.since_s > then[pulse.rank].since_s + JITTER_S
        for pulse in after
        if pulse.rank in then
    )
