"""Holdfast's own checkpoints, driven as its keeper drives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from holdfast_worker.archive import Archive
from holdfast_worker.arena import Arena
from holdfast_worker.division import Division
from holdfast_worker.fence import Fence
from holdfast_worker.lanes import Pace
from holdfast_worker.ranks import Ranks
from holdfast_worker.reading_together import read
from holdfast_worker.reports import Committed, Reports
from holdfast_worker.saver import Placement, Saver
from holdfast_worker.snapshot import Snapshot, make_room, take
from holdfast_worker.stores import open_store
from holdfast_worker.tracked import Tracked

NONCE = "0" * 8


class Herald(Reports):
    """Hears when a checkpoint is durable, and holds the saver there until that was read off."""

    def __init__(self) -> None:
        super().__init__(None)
        self.durable = threading.Event()
        self.go_on = threading.Event()

    def checkpoint_committed(self, committed: Committed) -> None:  # noqa: ARG002 - that it is, is all there is to hear
        """It is."""
        self.durable.set()
        self.go_on.wait()


class Holdfast:
    """One rank that saves and restores."""

    def __init__(
        self, objects: Mapping[str, object], url: str, pace_s: float | None = None
    ) -> None:
        self._pace_s = pace_s
        """Over which an upload is spread; None for as fast as it goes."""
        self._tracked = Tracked(objects)
        self._division = Division(self._tracked, Ranks.one())
        self._arena = Arena()
        self._fence = Fence()
        self._snapshot: Snapshot | None = None
        self._archive = Archive(open_store(url, "job"))
        self._archive.claims.take(1, NONCE, time.monotonic() + 60)
        self._placement = Placement(0, 1, 1, NONCE)
        self._herald = Herald()
        self._saver = Saver(self._archive, self._placement, self._herald, keep=1)

    def prepare(self) -> None:
        """Get the memory for snapshots, as the keeper does after the first step."""
        make_room(self._division, self._arena)
        self._arena.reserve(0)

    def save(self, number: int) -> None:
        """Take a snapshot, and begin to make it durable."""
        self._herald.durable.clear()
        self._herald.go_on.clear()
        snapshot = take(number, self._division, {}, self._arena, fence=self._fence)
        self._snapshot = snapshot
        pace = Pace(len(snapshot.memory) / self._pace_s) if self._pace_s else None
        self._saver.save(snapshot, pace)

    def end_step(self) -> None:
        """A step of a training is over; a save after it is copied beside the next one."""
        self._fence.end_step()

    def land(self) -> None:
        """Return once the state is copied."""
        assert self._snapshot
        self._snapshot.copying.wait()

    def settle(self) -> None:
        """Return once it is durable."""
        while not self._herald.durable.wait(0.1):
            assert self._saver.is_busy, "the save failed; it said why"

    @property
    def is_durable(self) -> bool:
        """Whether it is."""
        return self._herald.durable.is_set()

    def tidy(self) -> None:
        """Remove the checkpoint before."""
        self._herald.go_on.set()
        self._saver.wait(60)

    def restore(self, number: int) -> None:
        """Put the state back to where it was saved."""
        until_s = time.monotonic() + 600
        name = self._placement.name(number, number + 1)
        found = read(self._archive, Ranks.one(), self._tracked.homes(), name, until_s)
        self._tracked.load(found.tracked)
