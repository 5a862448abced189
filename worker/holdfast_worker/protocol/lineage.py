"""The lineage: which commits lead to where the job is now. Pure, and standard library only: the service reads it, too.

Two placements of a job can be alive at once: one that its launcher has given up, but that nobody could end, and the one
that took over. Each has an epoch, and the newer one the higher. Before a commit a placement looks whether a higher epoch
was claimed (`claims`), but between the look and the commit there is time: the successor may claim, choose a checkpoint
and begin, and then the older one commits after all. So readers do not believe every commit:

    A commit of epoch k at step c is off the lineage if any epoch e > k began at a step s < c.

A placement records where it begins before its first step: at the step of the checkpoint that it restored, or at 0. From
then on everything that older epochs have beyond that step is off the lineage, whenever it was written: what a zombie
commits late, and what was damaged and passed over, since those steps are made again. What lies at or before that step
stays: it is how the job came there, or an older fork that another start has cut off already. An epoch that began twice,
as after a restart of the same placement, counts with the lowest step. An epoch that never recorded a start never made a
step, and cuts off nothing.

A start that comes late, from a placement that is itself replaced by then, may cut off a commit from which the newest
placement went on. That costs steps if that one falls before its first commit, never a wrong one: what is left leads to
the job as well.

A start is needed as long as it may still cut something off. If a later epoch began at the same step or before, it cuts
off all that the earlier one does; so starts are forgotten that are followed by one at the same step or a lower one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from holdfast_worker.protocol.checkpoint_keys import CheckpointName

STARTS: Final = "starts/"


@dataclass(frozen=True, slots=True, order=True)
class EpochStart:
    """Where an epoch began."""

    epoch: int
    step: int

    @property
    def key(self) -> str:
        """Where it is recorded. All of it is in the key, so that one listing tells the lineage."""
        return f"{STARTS}{self.epoch:012d}-{self.step:012d}"

    @classmethod
    def of_key(cls, key: str) -> Self | None:
        """The start that a key records; None if it is nothing of ours."""
        match = re.fullmatch(rf"{STARTS}(\d+)-(\d+)", key)
        return cls(int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class Lineage:
    """All starts that are recorded."""

    starts: frozenset[EpochStart] = frozenset()

    def cut(self, name: CheckpointName) -> EpochStart | None:
        """The first start that put a commit off the lineage; None for one that is on it."""
        cuts = (s for s in self.starts if s.epoch > name.epoch and s.step < name.step)
        return min(cuts, default=None)

    def begun(self, start: EpochStart) -> Lineage:
        """The lineage after one more start."""
        return Lineage(self.starts | {start})

    def needless(self, start: EpochStart) -> list[EpochStart]:
        """The earlier starts that cut off nothing which `start` does not."""
        return [s for s in self.starts if s.epoch < start.epoch and s.step >= start.step]
