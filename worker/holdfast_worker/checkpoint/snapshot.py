"""A snapshot: the state at one moment, copied out of the way of the training."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from holdfast_worker.checkpoint.checksums import crc
from holdfast_worker.checkpoint.host_memory import StagingBuffer
from holdfast_worker.checkpoint.save_plan import SavePlan, SavePlanner
from holdfast_worker.checkpoint.staging import OptimizerBarrier, StagingCopy
from holdfast_worker.checkpoint.state_dict import Inline
from holdfast_worker.clock import now
from holdfast_worker.distributed.state_consistency import Statement, statement
from holdfast_worker.distributed.tensor_layout import Owner, Piece, TensorSpec, cuts
from holdfast_worker.distributed.weight_samples import Samples, draw
from holdfast_worker.protocol.reports import Json


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A rank's share of the state between two steps. Its bytes are good until the arena is used again."""

    step: int
    taken_at: datetime
    stood_s: float
    """How long the training stood still when it was taken."""
    copying: StagingCopy
    """How its bytes come into the memory. Until that is over, nothing of them is good."""
    rank: int
    kinds: Mapping[str, TensorSpec]
    """Of the tensors of which it has pieces."""
    pieces: tuple[Piece, ...]
    memory: memoryview
    """The stream: the pieces behind each other."""
    own: Json
    """Encoded tree of what belongs to this rank alone."""
    share: SavePlan
    """What of the state this rank has."""
    behind: memoryview
    """The stream, and behind it what is compared."""
    samples: Samples
    """Of what DDP keeps the same on all ranks."""

    @property
    def each(self) -> tuple[str, ...]:
        """Names of the objects of which each rank has its own."""
        return tuple(n for n, holder in self.share.keeping.items() if holder is Owner.EACH)

    @property
    def tracked(self) -> dict[str, Json]:
        """Encoded trees of what is tracked; on all ranks but the first, only of what each rank has for itself."""
        return {n: t for n, t in self.share.tree.items() if not self.rank or n in self.each}

    def stated(self, sums: Mapping[str, int]) -> Statement:
        """State what this rank has of what all ranks share. `sums`: checksums of what is in the stream."""
        if not self.share.forms:
            return {}
        mine = {
            p.name: sums[p.name] if p.name in sums else crc(self.behind[p.at : p.end])
            for p in self.share.compared
        }
        return statement(self.share.keeping, self.share.tree, self.share.forms, mine)

    @property
    def stall_s(self) -> float:
        """How long the training stood still for it."""
        return self.stood_s + self.copying.waited_s

    def parts(self, part_bytes: int) -> list[list[tuple[int, int]]]:
        """The stream by part, in stretches that belong to one piece each: first byte, and the one behind the last."""
        stretches = cuts(self.pieces, part_bytes)
        return [list(part) for _, part in groupby(stretches, key=lambda s: s[0] // part_bytes)]


def stage(
    step: int,
    division: SavePlanner,
    own: Any,
    arena: StagingBuffer,
    *,
    fence: OptimizerBarrier | None = None,
) -> Snapshot:
    """The state of this moment: this rank's share of what is tracked, and all of what is its own.

    With an open fence, what only optimizers change is copied after this has returned.

    Raises:
        Unstorable: a part of the state is of a kind that no checkpoint can hold.
        MemoryError: there is no room for a copy.
    """
    began_s = time.monotonic()
    taken_at = now()
    rank = division.ranks.rank
    share = division.share()
    arena.reserve(share.room)
    samples = draw({n: share.tensors[n] for n in share.sampled}, step)
    copying = StagingCopy(arena)
    if fence:
        fence.guard(copying)
    is_beside = fence is not None and fence.is_open
    resting = division.tracked.resting() if is_beside else frozenset()
    parcels = list(share.parcels())
    copying.begin(
        [p for p in parcels if p.owner.data_ptr() not in resting],
        [p for p in parcels if p.owner.data_ptr() in resting],
    )
    if not is_beside:
        copying.fence()
    return Snapshot(
        step=step,
        taken_at=taken_at,
        stood_s=time.monotonic() - began_s - copying.waited_s,
        copying=copying,
        rank=rank,
        kinds=share.kinds,
        pieces=share.pieces,
        memory=arena.memory(share.size),
        own=Inline().encode(own, "own"),
        # Without the live tensors, which the training may replace while this is uploaded.
        share=replace(share, tensors={}),
        behind=arena.memory(share.room),
        samples=samples,
    )


def make_room(division: SavePlanner, arena: StagingBuffer) -> None:
    """Let the arena be made ready for a snapshot of what is tracked now, while the training goes on.

    Raises:
        Unstorable: a part of the state is of a kind that no checkpoint can hold.
    """
    arena.reserve_soon(division.share().room)
