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
from holdfast_worker.layout import DTYPES, Kind, Region, Run, own_name
from holdfast_worker.names import Name
from holdfast_worker.pages import allot
from holdfast_worker.ranks import Ranks
from holdfast_worker.reading import PartId, Plan, Want, fill, gather, plan
from holdfast_worker.sharding import Sharding
from holdfast_worker.tracked import Mismatch
from holdfast_worker.tree import decode, leaves
from holdfast_worker.wire import Json


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
        Mismatch: it is of other ranks or objects than these; nothing was changed.
        Spoilt: some of it proved damaged after other parts were in their homes already.
        StoreError: the store does not answer a rank.
    """
    with together(ranks):
        commit = archive.read_commit(name, until_s)
    flaw = homes.flaw(commit.each, commit.world_size, ranks.world_size)
    if flaw:
        raise Mismatch(flaw)
    is_same = commit.world_size == ranks.world_size
    writers = [ranks.rank] if is_same else range(commit.world_size)
    with together(ranks):
        records = {writer: archive.read_record(commit, writer, until_s) for writer in writers}
        owns = {writer: decode(record.own, {}) for writer, record in records.items()}
        mine = records[ranks.rank].tracked if is_same else {}
        trees: dict[str, Json] = {**_trees(commit.tracked), **_trees(mine)}
        found = _found(commit, trees, homes, ranks.rank if is_same else 0)
        shardings = {n: homes.sharding(n, item.kind) for n, item in found.items()}
        wants = _wants(found, trees, homes, shardings)
        made, made_own = (
            plan(commit, {f.stored: wants[n] for n, f in found.items() if f.is_own is is_own})
            for is_own in (False, True)
        )
    is_alike = ranks.world_size > 1 and not any(shardings.values())
    try:
        if is_alike and archive.is_far:
            _read_shares(archive, ranks, commit, made, until_s)
        else:
            with together(ranks):
                archive.read_parts(commit, made.targets, until_s)
        with together(ranks):
            archive.read_parts(commit, made_own.targets, until_s)
    except Damaged as damage:
        is_in_place = any(homes.place(n, item.kind) is not None for n, item in found.items())
        if not ranks.most([float(is_in_place)])[0]:
            raise  # On all ranks, all of it went into memory of its own.
        raise Spoilt(str(damage)) from damage
    for finish in (*made.afterwards, *made_own.afterwards):
        finish()
    tensors = {n: _whole(item.kind, n, wants[n], shardings[n], homes) for n, item in found.items()}
    return Contents(name, commit.world_size, decode(trees, tensors), frozenset(wants), owns)


def _trees(raw: Any) -> dict[str, Json]:
    """Trees by the name of the object; a record of before there were any of one rank has null."""
    return dict(raw or {})


@dataclass(frozen=True, slots=True)
class _Found:
    """A tensor of a checkpoint that is to be read."""

    stored: str
    """Its name there."""
    kind: Kind
    is_own: bool
    """Whether other ranks may read another one in its place."""


def _found(commit: Commit, trees: Mapping[str, Json], homes: Homes, rank: int) -> dict[str, _Found]:
    """The tensors that are to be read, by their names in the trees; who only looks reads those of all ranks.

    Raises:
        Damaged: one is not there.
    """
    found: dict[str, _Found] = {}
    for name, tree in trees.items():
        for _, n in leaves(tree):
            stored = own_name(n, rank)
            is_own = name in commit.each or (n in homes.own and stored in commit.kinds)
            stored = stored if is_own else n
            if stored not in commit.kinds:
                raise Damaged(f"no rank wrote {stored}")
            found[n] = _Found(stored, commit.kinds[stored], is_own)
    if homes.each is None:
        read = {item.stored for item in found.values()}
        others = {n: _Found(n, k, is_own=True) for n, k in commit.kinds.items() if n not in read}
        found |= others
    return found


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
    found: Mapping[str, _Found],
    trees: Mapping[str, Json],
    homes: Homes,
    shardings: Mapping[str, Sharding | None],
) -> dict[str, Want]:
    """What this rank wants of every tensor, and its home, or memory for it: a block for each thing that is tracked.

    An optimizer keeps the tensors that it is given, a model copies them: the memory of one must not hold that of the other.
    """
    wants: dict[str, Want] = {}
    for names in (*([n for _, n in leaves(tree)] for tree in trees.values()), found):
        kinds = {n: found[n].kind for n in names if n not in wants}
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


def _whole(kind: Kind, name: str, want: Want, sharding: Sharding | None, homes: Homes) -> Tensor:
    """The tensor, after it was read: the live one itself, if it was read straight into that."""
    if homes.place(name, kind) is not None:
        return homes.live[name]
    return want.into if sharding is None else sharding.whole(want.into, kind)
