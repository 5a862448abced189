"""The lineage: which commits lead to the current state of the job.

Pure and standard library only, as the service uses it.

Two attempts of a job can run at once: one that its launcher has given up but could not end, and its successor. Each has
an epoch, and the newer one has the higher epoch. Before a commit an attempt checks whether a higher epoch was claimed
(`checkpoint.fencing`). Between the check and the commit the successor may claim, choose a checkpoint and start, and the
older attempt commits after that. Readers therefore exclude some commits:

    A commit of epoch k at step c is off the lineage if any epoch e > k began at a step s < c.

An attempt records its start before its first step: the step of the checkpoint that it restored, or 0. From then on all
commits of older epochs beyond that step are off the lineage, whenever they were written. These are late commits of a
zombie, and corrupt checkpoints that were skipped, since their steps are computed again. Commits at or before that step
stay: they lead to the job, or belong to an older fork that a different start has cut off already. An epoch that began
twice, as after a restart of the same attempt, counts with its lowest step. An epoch without a recorded start made no step
and cuts off nothing.

A late start, from an attempt that is itself replaced by then, may cut off a commit from which the newest attempt has
resumed. That costs steps if the newest attempt fails before its first commit, but never leads to a wrong checkpoint: the
remaining commits also lead to the job.

A start is needed as long as it may still cut off a commit. A later epoch that began at the same step or a lower one cuts
off the same commits and more. Starts followed by such an epoch are therefore deleted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from holdfast_worker.protocol.checkpoint_keys import CheckpointName

STARTS: Final = "starts/"


@dataclass(frozen=True, slots=True, order=True)
class EpochStart:
    """The step at which an epoch began."""

    epoch: int
    step: int

    @property
    def key(self) -> str:
        """Key of its record. The key has all fields, so that one listing returns the lineage."""
        return f"{STARTS}{self.epoch:012d}-{self.step:012d}"

    @classmethod
    def of_key(cls, key: str) -> Self | None:
        """Parse the start from its key; None for keys of a different form."""
        match = re.fullmatch(rf"{STARTS}(\d+)-(\d+)", key)
        return cls(int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class Lineage:
    """All recorded starts."""

    starts: frozenset[EpochStart] = frozenset()

    def superseding_start(self, name: CheckpointName) -> EpochStart | None:
        """The first start that cut a commit off the lineage; None if the commit is on it."""
        cuts = (s for s in self.starts if s.epoch > name.epoch and s.step < name.step)
        return min(cuts, default=None)

    def with_start(self, start: EpochStart) -> Lineage:
        """The lineage with an additional start."""
        return Lineage(self.starts | {start})

    def redundant_starts(self, start: EpochStart) -> list[EpochStart]:
        """Earlier starts whose cut-off commits `start` also cuts off."""
        return [s for s in self.starts if s.epoch < start.epoch and s.step >= start.step]
