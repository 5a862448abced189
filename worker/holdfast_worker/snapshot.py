"""A snapshot: the state at one moment, copied out of the way of the training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import torch
from torch import Tensor

from holdfast_worker.arena import Arena
from holdfast_worker.digest import raw
from holdfast_worker.layout import DTYPES, Held, Holder, Kind, Piece, Run, cuts, divide
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
    stall_s: float
    """How long the training stood still for it."""
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

    def stretches(self, part_bytes: int) -> Iterator[tuple[int, int]]:
        """The stream as stretches that belong to one piece and one part each: first byte, and the one behind the last."""
        return cuts(self.pieces, part_bytes)


def take(step: int, tracked: Tracked, own: Any, ranks: Ranks, arena: Arena) -> Snapshot:
    """The state of this moment: this rank's share of what is tracked, and all of what is its own.

    Raises:
        Unstorable: a part of the state is of a kind that no checkpoint can hold.
        MemoryError: there is no room for a copy.
    """
    began_s = time.monotonic()
    taken_at = now()
    encoder = Encoder()
    tree = {name: encoder.encode(state, name) for name, state in tracked.state().items()}
    replicated = tracked.replicated()
    locals_, held = {}, {}
    for name, tensor in encoder.tensors.items():
        locals_[name], held[name] = _hold(tensor, is_shared=name.startswith(replicated))
    pieces = divide(held, ranks.rank, ranks.world_size)
    size = pieces[-1].end if pieces else 0
    arena.reserve(size)
    copy(pieces, {p.name: held[p.name].kind for p in pieces}, locals_, arena)
    return Snapshot(
        step=step,
        taken_at=taken_at,
        stall_s=time.monotonic() - began_s,
        rank=ranks.rank,
        kinds={p.name: held[p.name].kind for p in pieces},
        pieces=pieces,
        memory=arena.memory(size),
        own=Inline().encode(own, "own"),
        tracked=None if ranks.rank else tree,
    )


def _hold(tensor: Tensor, *, is_shared: bool) -> tuple[Tensor, Held]:
    """What this rank has of a tensor in its memory, and what that is."""
    part = local_part(tensor)
    if part:
        return part
    kind = Kind.of(tensor)
    return tensor, Held.whole(kind, Holder.ALL if is_shared else Holder.FIRST)


def copy(
    pieces: tuple[Piece, ...],
    kinds: Mapping[str, Kind],
    locals_: Mapping[str, Tensor],
    arena: Arena,
) -> None:
    """Copy pieces of what is in memory into the arena, each to its place."""
    sources, targets = [], []
    memory = arena.memory(arena.size)
    for piece in pieces:
        kind, source = kinds[piece.name], locals_[piece.name].reshape(-1)
        if source.numel() == kind.count and isinstance(piece.region, Run):
            source = source[piece.region.start : piece.region.stop]
        if source.device.type == "cpu":
            # torch would cut each tensor into one share for each core, and have them all wait for the last: where
            # anything else runs on one of the cores, such as a loader of data, that took five times as long.
            memory[piece.at : piece.end] = raw(source)
        else:
            sources.append(source)
            targets.append(arena.view(piece.at, DTYPES[kind.dtype], source.numel()))
    if sources:
        torch._foreach_copy_(targets, sources)
