"""A snapshot: the state at one moment, copied out of the way of the training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from torch import Tensor

from holdfast_worker.arena import Arena
from holdfast_worker.copying import Copying, Parcel
from holdfast_worker.fence import Fence
from holdfast_worker.layout import Held, Holder, Kind, Piece, Run, cuts, divide
from holdfast_worker.moment import now
from holdfast_worker.ranks import Ranks
from holdfast_worker.sharding import local_part
from holdfast_worker.tracked import Tracked
from holdfast_worker.tree import Encoder, Inline
from holdfast_worker.wire import Json


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A rank's share of the state between two steps. Its bytes are good until the arena is used again."""

    step: int
    taken_at: datetime
    stood_s: float
    """How long the training stood still when it was taken."""
    copying: Copying
    """How its bytes come into the memory. Until that is over, nothing of them is good."""
    rank: int
    kinds: Mapping[str, Kind]
    """Of the tensors of which it has pieces."""
    pieces: tuple[Piece, ...]
    memory: memoryview
    """The stream: the pieces behind each other."""
    own: Json
    """Encoded tree of what belongs to this rank alone."""
    tracked: Json
    """Encoded tree of what is tracked; None on all ranks but the first."""

    @property
    def stall_s(self) -> float:
        """How long the training stood still for it."""
        return self.stood_s + self.copying.waited_s

    def stretches(self, part_bytes: int) -> Iterator[tuple[int, int]]:
        """The stream as stretches that belong to one piece and one part each: first byte, and the one behind the last."""
        return cuts(self.pieces, part_bytes)


def take(
    step: int, tracked: Tracked, own: Any, ranks: Ranks, arena: Arena, *, fence: Fence | None = None
) -> Snapshot:
    """The state of this moment: this rank's share of what is tracked, and all of what is its own.

    With an open fence, what only optimizers change is copied after this has returned.

    Raises:
        Unstorable: a part of the state is of a kind that no checkpoint can hold.
        MemoryError: there is no room for a copy.
    """
    began_s = time.monotonic()
    taken_at = now()
    share = _Share.of(tracked, ranks)
    arena.reserve(share.size)
    copying = Copying(arena)
    if fence:
        fence.guard(copying)
    is_beside = fence is not None and fence.is_open
    resting = tracked.resting() if is_beside else frozenset()
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
        rank=ranks.rank,
        kinds=share.kinds,
        pieces=share.pieces,
        memory=arena.memory(share.size),
        own=Inline().encode(own, "own"),
        tracked=None if ranks.rank else share.tree,
    )


def make_room(tracked: Tracked, ranks: Ranks, arena: Arena) -> None:
    """Let the arena be made ready for a snapshot of what is tracked now, while the training goes on.

    Raises:
        Unstorable: a part of the state is of a kind that no checkpoint can hold.
    """
    arena.reserve_soon(_Share.of(tracked, ranks).size)


@dataclass(frozen=True, slots=True)
class _Share:
    """What of the state a rank writes."""

    tree: Json
    """All of what is tracked."""
    here: Mapping[str, Tensor]
    """Every tensor of it, as far as it is in the memory of this rank."""
    kinds: Mapping[str, Kind]
    """Of the tensors of which it has pieces."""
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, tracked: Tracked, ranks: Ranks) -> Self:
        """The share of this rank.

        Raises:
            Unstorable: a part of the state is of a kind that no checkpoint can hold.
        """
        encoder = Encoder()
        tree = {name: encoder.encode(state, name) for name, state in tracked.state().items()}
        replicated = tracked.replicated()
        here, held = {}, {}
        for name, tensor in encoder.tensors.items():
            here[name], held[name] = _hold(tensor, is_shared=name.startswith(replicated))
        pieces = divide(held, ranks.rank, ranks.world_size)
        return cls(tree, here, {p.name: held[p.name].kind for p in pieces}, pieces)

    def parcels(self) -> Iterator[Parcel]:
        """The pieces, as memory that is to be copied."""
        for piece in self.pieces:
            owner = self.here[piece.name]
            flat = owner.contiguous().reshape(-1)
            if flat.numel() == self.kinds[piece.name].count and isinstance(piece.region, Run):
                flat = flat[piece.region.start : piece.region.stop]
            yield Parcel(owner, flat, piece.at)

    @property
    def size(self) -> int:
        """In bytes."""
        return self.pieces[-1].end if self.pieces else 0


def _hold(tensor: Tensor, *, is_shared: bool) -> tuple[Tensor, Held]:
    """What this rank has of a tensor in its memory, and what that is."""
    part = local_part(tensor)
    if part:
        return part
    kind = Kind.of(tensor)
    return tensor.detach(), Held.whole(kind, Holder.ALL if is_shared else Holder.FIRST)
