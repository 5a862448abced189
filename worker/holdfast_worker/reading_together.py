"""Reading together: all ranks read one checkpoint, each a share of it where that is faster, and agree whether it is sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast_worker.accord import together
from holdfast_worker.archive import Archive
from holdfast_worker.checkpoint import Commit, Damaged, Spoilt
from holdfast_worker.digest import raw
from holdfast_worker.homes import Homes
from holdfast_worker.layout import DTYPES, Kind, Region, Run
from holdfast_worker.names import Name
from holdfast_worker.pages import allot
from holdfast_worker.ranks import Ranks
from holdfast_worker.reading import PartId, Plan, Want, fill, gather, plan
from holdfast_worker.sharding import Sharding
from holdfast_worker.tree import decode, leaves


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint read back, verified."""

    name: Name
    world_size: int
    """Number of ranks that saved it."""
    tracked: dict[str, Any]
    """State by the name under which it is tracked."""
    names: frozenset[str]
    """Names of all tensors in it."""
    owns: Mapping[int, Any]
    """State that belonged to one rank alone, by rank: to this one, or to all that saved if those were more or fewer."""


def read(archive: Archive, ranks: Ranks, homes: Homes, name: Name, until_s: float) -> Contents:
    """A checkpoint, straight in its homes as far as there are any. All ranks call it, and all have the same end.

    Raises:
        Damaged: a rank cannot use it; nothing was changed.
        Spoilt: some of it proved damaged after other parts were in their homes already.
        StoreError: the store does not answer a rank.
    """
    with together(ranks):
        commit = archive.read_commit(name, until_s)
    shardings = {n: homes.sharding(n, kind) for n, kind in commit.kinds.items()}
    wants = _wants(commit, homes, shardings)
    is_same = commit.world_size == ranks.world_size
    writers = [ranks.rank] if is_same else range(commit.world_size)
    with together(ranks):
        made = plan(commit, wants)
        owns = {writer: archive.read_own(commit, writer, until_s) for writer in writers}
    is_alike = ranks.world_size > 1 and not any(shardings.values())
    try:
        if is_alike and archive.is_far:
            _read_shares(archive, ranks, commit, made, until_s)
        else:
            with together(ranks):
                archive.read_parts(commit, made.targets, until_s)
    except Damaged as damage:
        if all(homes.place(n, kind) is None for n, kind in commit.kinds.items()):
            raise  # All of it went into memory of its own.
        raise Spoilt(str(damage)) from damage
    for finish in made.afterwards:
        finish()
    tensors = {n: _whole(commit, n, want, shardings[n], homes) for n, want in wants.items()}
    return Contents(
        name, commit.world_size, decode(commit.tracked, tensors), frozenset(wants), owns
    )


def _read_shares(
    archive: Archive, ranks: Ranks, commit: Commit, made: Plan, until_s: float
) -> None:
    """Read 1/N of the parts on each of N ranks, and let each rank have them from the one that read them."""
    parts = sorted(made.targets)
    readers = {part: i * ranks.world_size // len(parts) for i, part in enumerate(parts)}
    own = {part: made.targets[part] for part in parts if readers[part] == ranks.rank}
    with together(ranks):
        archive.read_parts(commit, own, until_s)
    passing = torch.empty(max((_size(commit, p) for p in parts), default=0), dtype=torch.uint8)
    for part in parts:
        buffer = passing[: _size(commit, part)]
        if part in own:
            gather(own[part], raw(buffer))
        ranks.spread(buffer, readers[part])
        if part not in own:
            fill(made.targets[part], raw(buffer), 0)


def _size(commit: Commit, part: PartId) -> int:
    begin, end = commit.streams[part.rank].bounds(part.number)
    return end - begin


def _wants(
    commit: Commit, homes: Homes, shardings: Mapping[str, Sharding | None]
) -> dict[str, Want]:
    """What this rank wants of every tensor, and its home, or memory for it: a block for each thing that is tracked.

    An optimizer keeps the tensors that it is given, a model copies them: the memory of one must not hold that of the other.
    """
    wants: dict[str, Want] = {}
    trees: Any = commit.tracked
    for tree in trees.values():
        kinds = {n: commit.kinds[n] for _, n in leaves(tree) if n not in wants}
        regions = {n: _region(kind, shardings[n]) for n, kind in kinds.items()}
        places = {n: homes.place(n, kind) for n, kind in kinds.items()}
        homeless = [n for n, place in places.items() if place is None]
        memory = allot({n: (regions[n][1], DTYPES[kinds[n].dtype]) for n in homeless})
        for n, place in places.items():
            wants[n] = Want(kinds[n], regions[n][0], memory[n] if place is None else place)
    return wants


def _region(kind: Kind, sharding: Sharding | None) -> tuple[Region, tuple[int, ...]]:
    """What this rank wants of a tensor, and the shape of that."""
    if sharding is None:
        return Run(0, kind.count), kind.shape
    return sharding.region(kind), sharding.local_shape(kind)


def _whole(
    commit: Commit, name: str, want: Want, sharding: Sharding | None, homes: Homes
) -> Tensor:
    """The tensor, after it was read: the live one itself, if it was read straight into that."""
    kind = commit.kinds[name]
    if homes.place(name, kind) is not None:
        return homes.live[name]
    return want.into if sharding is None else sharding.whole(want.into, kind)
