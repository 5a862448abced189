"""The keeper of a run's checkpoints: knows what is tracked, when a save is due, and how the last one went."""

from __future__ import annotations

import time
from typing import Any, Final

from holdfast_worker.archive import Archive
from holdfast_worker.arena import Arena
from holdfast_worker.boundary import Vote
from holdfast_worker.cadence import is_due
from holdfast_worker.fence import Fence
from holdfast_worker.lanes import Pace
from holdfast_worker.ranks import Ranks
from holdfast_worker.reports import Reports
from holdfast_worker.restoring import PATIENCE_S, Restored, restore
from holdfast_worker.saver import LOOK_S, Placement, Saver
from holdfast_worker.snapshot import make_room, take
from holdfast_worker.tracked import Tracked
from holdfast_worker.wire import Cadence

PACED_SHARE: Final = 0.25
"""Of the time between two saves, in which a save is spread out. Larger risks more work to a sudden end, smaller disturbs
the training more: on few cores an upload at full speed takes the processor from it."""


class Keeper:
    """Checkpoints of what is tracked, in an archive."""

    def __init__(self, archive: Archive, tracked: Tracked, ranks: Ranks, cadence: Cadence) -> None:
        self._archive = archive
        self._tracked = tracked
        self._ranks = ranks
        self._cadence = cadence
        self._arena = Arena()
        self._has_room = False
        self._fence = Fence()
        self._saver: Saver | None = None
        self._durable_s: float | None = None
        self._saved_step = 0
        self._saved_s = 0.0

    def restore(self, placement: Placement, reports: Reports, keep: int) -> Restored:
        """Where to go on, with what is tracked put back there. From here on the epoch of `placement` has begun.

        Raises:
            Mismatch: the checkpoint holds other things.
            StoreError: the store failed any rank.
        """
        until_s = time.monotonic() + PATIENCE_S
        restored = restore(self._archive, self._ranks, self._tracked, placement.epoch, until_s)
        if restored.name:
            self._saved_step = restored.name.step
        self._saver = Saver(
            self._archive,
            placement,
            reports,
            keep=keep,
            damaged=restored.damaged,
            lineage=restored.lineage,
        )
        return restored

    def end_step(self) -> None:
        """A step is over.

        The first one asks for the memory for snapshots, beside the training, which would stand still for it at the first of
        them; not before, as it is then that an optimizer makes its state.
        """
        self._fence.end_step()
        if not self._has_room:
            self._has_room = True
            make_room(self._tracked, self._ranks, self._arena)

    def start_the_clock(self) -> None:
        """Training begins: seconds until the first save count from here."""
        self._saved_s = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether a save should be proposed. The first rank alone proposes, as clocks differ."""
        since_s = time.monotonic() - self._saved_s
        cost = self._the_saver.cost
        return self._ranks.rank == 0 and is_due(
            self._cadence, step - self._saved_step, since_s, cost
        )

    def vote(self) -> Vote:
        """How this rank's save goes."""
        cost = self._the_saver.cost
        return Vote(
            is_busy=self._the_saver.is_busy,
            is_broken=self._the_saver.is_broken,
            is_fenced=bool(self._the_saver.fenced),
            durable_s=cost.durable_s if cost else None,
        )

    def has_saved(self, step: int) -> bool:
        """Whether the state after `step` is in a checkpoint, or on its way into one."""
        return step == self._saved_step

    def hear(self, votes: Vote) -> None:
        """Learn from all ranks' votes what a save takes, and whether the one under way can still succeed."""
        self._durable_s = votes.durable_s
        if votes.is_broken:
            self._the_saver.abandon()

    def save(self, step: int, own: Any) -> None:
        """Begin a checkpoint of the state after `step`; `own` is what belongs to this rank alone."""
        snapshot = take(step, self._tracked, own, self._ranks, self._arena, fence=self._fence)
        since_s = time.monotonic() - self._saved_s
        self._the_saver.save(snapshot, _pace(len(snapshot.memory), since_s, self._durable_s))
        self._saved_step = step
        self._saved_s = time.monotonic()

    @property
    def fenced(self) -> str:
        """That a newer placement took over, in words, on the rank that found out; empty elsewhere."""
        return self._the_saver.fenced

    def settle(self) -> Vote:
        """How the last save went on all ranks, once none of them has one under way."""
        while True:
            votes = Vote.of(self._ranks.most(self.vote().numbers()))
            self.hear(votes)
            if not votes.is_busy:
                return votes
            self._the_saver.wait(LOOK_S)

    def wait(self, within_s: float) -> None:
        """Let this rank's save come to an end, for a while."""
        self._the_saver.wait(within_s)

    @property
    def _the_saver(self) -> Saver:
        assert self._saver, "restored before anything else"
        return self._saver


def _pace(size: int, since_s: float, durable_s: float | None) -> Pace:
    """How fast to upload so many bytes, the last save being `since_s` ago. The first one shows how fast it can be."""
    target_s = PACED_SHARE * since_s
    if durable_s is None or durable_s >= target_s:
        return Pace()
    return Pace(size / target_s)
