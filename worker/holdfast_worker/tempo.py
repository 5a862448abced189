"""The tempo: how often a run saves, as its job file says, or as its checkpoints and its nodes have shown."""

from __future__ import annotations

from holdfast_worker.cadence import FIRST_SAVE_S, choose, is_due
from holdfast_worker.costs import Cost, Costs
from holdfast_worker.survival import Survival
from holdfast_worker.wire import Cadence, Interval, Rhythm


class Tempo:
    """When the next checkpoint is due. The first rank's learns; of others', nothing is asked.

    The thread that saves learns while that of the training asks: each attribute is replaced as a whole.
    """

    def __init__(self, cadence: Cadence) -> None:
        self._cadence = cadence
        self._costs = Costs()
        self.durable_s: float | None = None
        """What a checkpoint is expected to take at full speed; None before one was durable."""
        self.interval: Interval | None = None
        """What `auto` goes by; None before a checkpoint was durable, and with any other cadence."""

    def learn(self, cost: Cost, survival: Survival) -> bool:
        """A checkpoint is durable. Whether `auto` goes by another interval from now on."""
        self._costs.note(cost)
        self.durable_s = self._costs.durable_s
        if self._cadence.rhythm is not Rhythm.AUTO:
            return False
        present = self.interval
        stall_s, durable_s, between_s = self._costs.stall_s, self.durable_s, survival.between_s
        interval_s = choose(stall_s, durable_s, between_s, present.interval_s if present else None)
        self.interval = Interval(
            interval_s=interval_s,
            stall_ms=round(stall_s * 1000),
            durable_ms=round(durable_s * 1000),
            between_failures_s=round(between_s),
            losses=survival.losses,
        )
        return present is None or present.interval_s != interval_s

    def is_due(self, steps_since: int, seconds_since: float, failures: int) -> bool:
        """Whether it is time, after the last snapshot and so many checkpoints in a row that have failed."""
        best_s = self.interval.interval_s if self.interval else FIRST_SAVE_S
        return is_due(self._cadence, steps_since, seconds_since, best_s, failures)
