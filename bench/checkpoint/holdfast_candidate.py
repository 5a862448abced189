"""Holdfast's own checkpoints, driven as its keeper drives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from holdfast_worker.checkpoint.collective import read_checkpoint
from holdfast_worker.checkpoint.host_memory import StagingBuffer
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.save_plan import SavePlanner
from holdfast_worker.checkpoint.snapshot import Snapshot, reserve_buffer, stage
from holdfast_worker.checkpoint.staging import OptimizerBarrier
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.checkpoint.transfers import RateLimit
from holdfast_worker.checkpoint.writer import AsyncWriter, WriterIdentity
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.storage import open_store
from holdfast_worker.telemetry.reporter import CommittedCheckpoint, Reporter

NONCE = "0" * 8


class CheckpointListener(Reporter):
    """Hears when a checkpoint is durable, and holds the saver there until that was read off."""

    def __init__(self) -> None:
        super().__init__(None)
        self.durable = threading.Event()
        self.go_on = threading.Event()

    def checkpoint_committed(self, committed: CommittedCheckpoint) -> None:  # noqa: ARG002 - that it is, is all there is to hear
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
        self._tracked = TrackedState(objects)
        self._division = SavePlanner(self._tracked, ProcessGroup.single())
        self._arena = StagingBuffer()
        self._fence = OptimizerBarrier()
        self._snapshot: Snapshot | None = None
        self._archive = CheckpointRepository(open_store(url, "job"))
        self._archive.tokens.claim(1, NONCE, time.monotonic() + 60)
        self._placement = WriterIdentity(0, 1, 1, NONCE)
        self._herald = CheckpointListener()
        self._saver = AsyncWriter(self._archive, self._placement, self._herald, keep=1)

    def prepare(self) -> None:
        """Get the memory for snapshots, as the keeper does after the first step."""
        reserve_buffer(self._division, self._arena)
        self._arena.reserve(0)

    def save(self, number: int) -> None:
        """Take a snapshot, and begin to make it durable."""
        self._herald.durable.clear()
        self._herald.go_on.clear()
        snapshot = stage(number, self._division, {}, self._arena, fence=self._fence)
        self._snapshot = snapshot
        pace = RateLimit(len(snapshot.memory) / self._pace_s) if self._pace_s else None
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
        found = read_checkpoint(
            self._archive, ProcessGroup.single(), self._tracked.destinations(), name, until_s
        )
        self._tracked.load(found.tracked)
