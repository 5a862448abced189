"""Reading together: all ranks read one checkpoint, each a share of it where that is faster, and agree whether it is sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast_worker.accord import together
from holdfast_worker.archive import Archive
from holdfast_worker.checkpoint import Commit, Name
from holdfast_worker.digest import raw
from holdfast_worker.layout import Kind, Run
from holdfast_worker.ranks import Ranks
from holdfast_worker.reading import PartId, Plan, Target, Want, fill, fresh, plan
from holdfast_worker.sharding import Sharding
from holdfast_worker.tree import decode

Spread = Callable[[str, Kind], Sharding | None]
"""How the tensor of a name and kind is spread over ranks; None for one that every rank has."""


def nothing_is_spread(_name: str, _kind: Kind) -> None:
    """Every rank has everything."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint read back, verified."""

    name: Name
    world_size: int
    """Number of ranks that saved it."""
    tracked: dict[str, Any]
    """State by the name under which it is tracked."""
    owns: Mapping[int, Any]
    """State that belonged to one rank alone, by rank: to this one, or to all that saved if those were more or fewer."""


def read(archive: Archive, ranks: Ranks, spread: Spread, name: Name, until_s: float) -> Contents:
    """A checkpoint, in memory of its own. All ranks call it, and all have the same end.

    `spread` says which tensors are to be sharded over the ranks, and how.

    Raises:
        Damaged: a rank cannot use it.
        StoreError: the store does not answer a rank.
    """
    with together(ranks):
        commit = archive.read_commit(name, until_s)
    shardings = {n: spread(n, kind) for n, kind in commit.kinds.items()}
    wants = {n: _want(commit, n, shardings[n]) for n in commit.kinds}
    with together(ranks):
        made = plan(commit, wants)
    is_alike = ranks.world_size > 1 and not any(shardings.values())
    if is_alike and archive.is_far:
        _read_shares(archive, ranks, commit, made, until_s)
    else:
        with together(ranks):
            archive.read_parts(commit, made.targets, until_s)
    for finish in made.afterwards:
        finish()
    is_same = commit.world_size == ranks.world_size
    writers = [ranks.rank] if is_same else range(commit.world_size)
    with together(ranks):
        owns = {writer: archive.read_own(commit, writer, until_s) for writer in writers}
    tensors = {n: _whole(commit, n, want, shardings[n]) for n, want in wants.items()}
    return Contents(name, commit.world_size, decode(commit.tracked, tensors), owns)


def _read_shares(
    archive: Archive, ranks: Ranks, commit: Commit, made: Plan, until_s: float
) -> None:
    """Read 1/N of the parts on each of N ranks, and let each rank have them from the one that read them."""
    parts = sorted(made.targets)
    readers = {part: i * ranks.world_size // len(parts) for i, part in enumerate(parts)}
    landed: dict[PartId, Tensor] = {}
    for part in parts:
        if readers[part] == ranks.rank:
            begin, end = commit.streams[part.rank].bounds(part.number)
            landed[part] = torch.empty(end - begin, dtype=torch.uint8)
    aims = {part: [Target(0, raw(here))] for part, here in landed.items()}
    with together(ranks):
        archive.read_parts(commit, aims, until_s)
    for part in parts:
        begin, end = commit.streams[part.rank].bounds(part.number)
        buffer = landed.pop(part, None)
        if buffer is None:
            buffer = torch.empty(end - begin, dtype=torch.uint8)
        ranks.spread(buffer, readers[part])
        fill(made.targets[part], raw(buffer), 0)


def _want(commit: Commit, name: str, sharding: Sharding | None) -> Want:
    kind = commit.kinds[name]
    if sharding is None:
        return fresh(kind, Run(0, kind.count), kind.shape)
    return fresh(kind, sharding.region(kind), sharding.local_shape(kind))


def _whole(commit: Commit, name: str, want: Want, sharding: Sharding | None) -> Tensor:
    return want.into if sharding is None else sharding.whole(want.into, commit.kinds[name])
