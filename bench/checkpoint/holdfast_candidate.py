"""Holdfast's checkpoints, called as by its checkpointer."""

from __future__ import annotations

import os
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
    """Detects durable checkpoints, and blocks the writer until the time was taken."""

    def __init__(self) -> None:
        super().__init__(None)
        self.durable = threading.Event()
        self.proceed = threading.Event()

    def checkpoint_committed(self, committed: CommittedCheckpoint) -> None:  # noqa: ARG002 - only the event matters
        """Record that the checkpoint is durable."""
        self.durable.set()
        self.proceed.wait()


class Holdfast:
    """One rank that saves and restores."""

    def __init__(
        self, objects: Mapping[str, object], url: str, pace_s: float | None = None
    ) -> None:
        self._pace_s = pace_s
        """Duration over which an upload is spread; None: as fast as possible."""
        self._tracked = TrackedState(objects)
        self._planner = SavePlanner(self._tracked, ProcessGroup.single())
        self._buffer = StagingBuffer()
        self._barrier = OptimizerBarrier()
        self._snapshot: Snapshot | None = None
        self._repository = CheckpointRepository(open_store(url, "job", os.environ))
        self._repository.tokens.claim(1, NONCE, time.monotonic() + 60)
        self._placement = WriterIdentity(0, 1, 1, NONCE)
        self._listener = CheckpointListener()
        self._writer = AsyncWriter(self._repository, self._placement, self._listener, keep=1)

    def prepare(self) -> None:
        """Allocate memory for snapshots, as the checkpointer does after the first step."""
        reserve_buffer(self._planner, self._buffer)
        self._buffer.reserve(0)

    def save(self, number: int) -> None:
        """Take a snapshot and start to upload it."""
        self._listener.durable.clear()
        self._listener.proceed.clear()
        snapshot = stage(number, self._planner, {}, self._buffer, barrier=self._barrier)
        self._snapshot = snapshot
        pace = RateLimit(len(snapshot.memory) / self._pace_s) if self._pace_s else None
        self._writer.save(snapshot, pace)

    def end_step(self) -> None:
        """End a training step; a snapshot is copied during the next step."""
        self._barrier.end_step()

    def wait_for_copy(self) -> None:
        """Wait until the state is copied."""
        assert self._snapshot
        self._snapshot.copying.wait()

    def settle(self) -> None:
        """Wait until the checkpoint is durable."""
        while not self._listener.durable.wait(0.1):
            assert self._writer.is_busy, "the save failed; see the log"

    @property
    def is_durable(self) -> bool:
        """Whether the checkpoint is durable."""
        return self._listener.durable.is_set()

    def delete_previous(self) -> None:
        """Delete the previous checkpoint."""
        self._listener.proceed.set()
        self._writer.wait(60)

    def restore(self, number: int) -> None:
        """Restore the saved state."""
        until_s = time.monotonic() + 600
        name = self._placement.name(number, number + 1)
        found = read_checkpoint(
            self._repository, ProcessGroup.single(), self._tracked.destinations(), name, until_s
        )
        self._tracked.load(found.tracked)
