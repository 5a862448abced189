"""A snapshot: one rank's part of the state at one moment, staged in host memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from holdfast_worker.checkpoint.checksums import crc64
from holdfast_worker.checkpoint.host_memory import StagingBuffer
from holdfast_worker.checkpoint.save_plan import SavePlan, SavePlanner
from holdfast_worker.checkpoint.staging import OptimizerBarrier, StagingCopy
from holdfast_worker.checkpoint.state_consistency import Statement, state_statement
from holdfast_worker.checkpoint.state_dict import InlineEncoder
from holdfast_worker.clock import now
from holdfast_worker.distributed.tensor_layout import Owner, TensorPiece, TensorSpec, cut_stream
from holdfast_worker.distributed.weight_samples import WeightSamples, draw_samples
from holdfast_worker.protocol.reports import Json


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A rank's part of the state between two steps.

    Its bytes are valid until the staging buffer is reused.
    """

    step: int
    staged_at: datetime
    blocked_s: float
    """How long training was blocked when the snapshot was taken."""
    copying: StagingCopy
    """The copy into `memory`, whose bytes are valid once it is complete."""
    rank: int
    kinds: Mapping[str, TensorSpec]
    """Specs of the tensors of which it has pieces."""
    pieces: tuple[TensorPiece, ...]
    memory: memoryview
    """The bytes to upload: the pieces in order."""
    own: Json
    """Encoded tree of this rank's own state."""
    plan: SavePlan
    """Which part of the state this rank writes."""
    compared_memory: memoryview
    """The bytes to upload, followed by those that are only compared."""
    samples: WeightSamples
    """Samples of tensors that DDP keeps equal on all ranks."""

    @property
    def per_rank(self) -> tuple[str, ...]:
        """Names of the per-rank objects."""
        return tuple(n for n, holder in self.plan.owners.items() if holder is Owner.PER_RANK)

    @property
    def tracked(self) -> dict[str, Json]:
        """Encoded trees of tracked objects; ranks other than rank 0 store only per-rank objects."""
        return {n: t for n, t in self.plan.tree.items() if not self.rank or n in self.per_rank}

    def statement(self, sums: Mapping[str, int]) -> Statement:
        """This rank's statement of the shared state. `sums`: checksums of the uploaded pieces."""
        if not self.plan.forms:
            return {}
        mine = {
            p.name: sums[p.name] if p.name in sums else crc64(self.compared_memory[p.at : p.end])
            for p in self.plan.compared
        }
        return state_statement(self.plan.owners, self.plan.tree, self.plan.forms, mine)

    @property
    def stall_s(self) -> float:
        """How long the snapshot blocked training in total."""
        return self.blocked_s + self.copying.waited_s

    def parts(self, part_bytes: int) -> list[list[tuple[int, int]]]:
        """Stretches by part, each within one piece, as first byte and the byte after the last."""
        stretches = cut_stream(self.pieces, part_bytes)
        return [list(part) for _, part in groupby(stretches, key=lambda s: s[0] // part_bytes)]


def stage(
    step: int,
    planner: SavePlanner,
    own: Any,
    buffer: StagingBuffer,
    *,
    barrier: OptimizerBarrier | None = None,
) -> Snapshot:
    """Take a snapshot of this rank's part of the tracked state and of its `own` state.

    With an open barrier, tensors that only optimizers change are copied after this returns.

    Raises:
        UnserializableState: part of the state cannot be checkpointed.
        MemoryError: there is no memory for a copy.
    """
    began_s = time.monotonic()
    staged_at = now()
    rank = planner.ranks.rank
    share = planner.plan()
    buffer.reserve(share.buffer_size)
    samples = draw_samples({n: share.tensors[n] for n in share.sampled}, step)
    copying = StagingCopy(buffer)
    if barrier:
        barrier.guard(copying)
    is_beside = barrier is not None and barrier.is_open
    resting = planner.tracked.optimizer_owned() if is_beside else frozenset()
    ranges = list(share.copy_ranges())
    copying.start(
        [p for p in ranges if p.owner.data_ptr() not in resting],
        [p for p in ranges if p.owner.data_ptr() in resting],
    )
    if not is_beside:
        copying.synchronize()
    return Snapshot(
        step=step,
        staged_at=staged_at,
        blocked_s=time.monotonic() - began_s - copying.waited_s,
        copying=copying,
        rank=rank,
        kinds=share.kinds,
        pieces=share.pieces,
        memory=buffer.memory(share.size),
        own=InlineEncoder().encode(own, "own"),
        # Without the live tensors, which training may replace during the upload.
        plan=replace(share, tensors={}),
        compared_memory=buffer.memory(share.buffer_size),
        samples=samples,
    )


def reserve_buffer(planner: SavePlanner, buffer: StagingBuffer) -> None:
    """Allocate the staging buffer for the currently tracked state in the background.

    Raises:
        UnserializableState: part of the state cannot be checkpointed.
    """
    buffer.reserve_async(planner.plan().buffer_size)
