"""Accord: what a store refuses to one rank is refused to all, so that none waits for another that has given up.

Reading together: all ranks read one checkpoint, each a share of it where that is faster, and agree whether it is sound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from holdfast_worker.checkpoint.checksums import raw
from holdfast_worker.checkpoint.host_memory import allocate
from holdfast_worker.checkpoint.metadata import (
    CommitMetadata,
    CorruptCheckpoint,
    Foreign,
    PartialLoadError,
    Withheld,
)
from holdfast_worker.checkpoint.read_plan import (
    DestinationTensors,
    PartId,
    ReadPlan,
    ReadRequest,
    fill,
    gather,
    plan,
)
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.state_dict import decode, leaves
from holdfast_worker.checkpoint.stateful import StateMismatch
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.sharding import Sharding
from holdfast_worker.distributed.tensor_layout import (
    DTYPES,
    ElementRange,
    Region,
    TensorSpec,
    own_name,
)
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.reports import Json
from holdfast_worker.storage.base import StoreError

REFUSALS: Final = (StoreError, Foreign)
"""What another try may change, and what it cannot."""

FLAWS: Final = (CorruptCheckpoint, Withheld)
"""Of a checkpoint that is worth nothing, and of one that may be sound."""


@contextmanager
def fail_together(ranks: ProcessGroup) -> Iterator[None]:
    """What all ranks do, or one of them for all, and none of them has done if it fails on any.

    Nothing but these two may end it on one rank alone.

    Raises:
        StoreError: what the store said to the lowest rank that it failed; the same on all ranks.
        Foreign: the same, where that is a checkpoint that is not for this version or this job.
        Damaged: what the lowest rank found that cannot use a checkpoint; the same on all ranks.
        Withheld: the same, where the store does not give an object of it.
    """
    complaint = flaw = ""
    try:
        yield
    except StoreError as error:
        complaint = f"{isinstance(error, Foreign):d}{str(error) or type(error).__name__}"
    except CorruptCheckpoint as damage:
        flaw = f"{isinstance(damage, Withheld):d}{damage}"
    complaint = ranks.first_message(complaint)
    if complaint:
        raise REFUSALS[int(complaint[0])](complaint[1:])
    flaw = ranks.first_message(flaw)
    if flaw:
        raise FLAWS[int(flaw[0])](flaw[1:])


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint read back, verified."""

    name: CheckpointName
    world_size: int
    """Number of ranks that saved it."""
    tracked: dict[str, Any]
    """State by the name under which it is tracked."""
    names: frozenset[str]
    """Names of all tensors in it."""
    owns: Mapping[int, Any]
    """State that belonged to one rank alone, by rank: to this one, or to all that saved if those were more or fewer."""


def read(
    archive: CheckpointRepository,
    ranks: ProcessGroup,
    homes: DestinationTensors,
    name: CheckpointName,
    until_s: float,
) -> LoadedCheckpoint:
    """A checkpoint, straight in its homes as far as there are any. All ranks call it, and all have the same end.

    Raises:
        Damaged: a rank cannot use it; nothing was changed.
        Mismatch: it is of other ranks or objects than these; nothing was changed.
        Spoilt: some of it proved damaged after other parts were in their homes already.
        StoreError: the store does not answer a rank.
    """
    with fail_together(ranks):
        commit = archive.read_commit(name, until_s)
    flaw = homes.flaw(commit.each, commit.world_size, ranks.world_size)
    if flaw:
        raise StateMismatch(flaw)
    is_same = commit.world_size == ranks.world_size
    writers = [ranks.rank] if is_same else range(commit.world_size)
    with fail_together(ranks):
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
            with fail_together(ranks):
                archive.read_parts(commit, made.targets, until_s)
        with fail_together(ranks):
            archive.read_parts(commit, made_own.targets, until_s)
    except CorruptCheckpoint as damage:
        is_in_place = any(homes.place(n, item.kind) is not None for n, item in found.items())
        if not ranks.all_reduce_max([float(is_in_place)])[0]:
            raise  # On all ranks, all of it went into memory of its own.
        raise PartialLoadError(str(damage)) from damage
    for finish in (*made.afterwards, *made_own.afterwards):
        finish()
    tensors = {n: _whole(item.kind, n, wants[n], shardings[n], homes) for n, item in found.items()}
    return LoadedCheckpoint(name, commit.world_size, decode(trees, tensors), frozenset(wants), owns)


def _trees(raw: Any) -> dict[str, Json]:
    """Trees by the name of the object; a record of before there were any of one rank has null."""
    return dict(raw or {})


@dataclass(frozen=True, slots=True)
class _Found:
    """A tensor of a checkpoint that is to be read."""

    stored: str
    """Its name there."""
    kind: TensorSpec
    is_own: bool
    """Whether other ranks may read another one in its place."""


def _found(
    commit: CommitMetadata, trees: Mapping[str, Json], homes: DestinationTensors, rank: int
) -> dict[str, _Found]:
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
                raise CorruptCheckpoint(f"no rank wrote {stored}")
            found[n] = _Found(stored, commit.kinds[stored], is_own)
    if homes.each is None:
        read = {item.stored for item in found.values()}
        others = {n: _Found(n, k, is_own=True) for n, k in commit.kinds.items() if n not in read}
        found |= others
    return found


def _read_shares(
    archive: CheckpointRepository,
    ranks: ProcessGroup,
    commit: CommitMetadata,
    made: ReadPlan,
    until_s: float,
) -> None:
    """Read 1/N of the parts on each of N ranks, and let each rank have them from the one that read them."""
    parts = sorted(made.targets)
    readers = {part: i * ranks.world_size // len(parts) for i, part in enumerate(parts)}
    own = {part: made.targets[part] for part in parts if readers[part] == ranks.rank}
    with fail_together(ranks):
        archive.read_parts(commit, own, until_s)
    passing = torch.empty(max((_size(commit, p) for p in parts), default=0), dtype=torch.uint8)
    for part in parts:
        buffer = passing[: _size(commit, part)]
        if part in own:
            gather(own[part], raw(buffer))
        ranks.spread(buffer, readers[part])
        if part not in own:
            fill(made.targets[part], raw(buffer), 0)


def _size(commit: CommitMetadata, part: PartId) -> int:
    begin, end = commit.streams[part.rank].bounds(part.number)
    return end - begin


def _wants(
    found: Mapping[str, _Found],
    trees: Mapping[str, Json],
    homes: DestinationTensors,
    shardings: Mapping[str, Sharding | None],
) -> dict[str, ReadRequest]:
    """What this rank wants of every tensor, and its home, or memory for it: a block for each thing that is tracked.

    An optimizer keeps the tensors that it is given, a model copies them: the memory of one must not hold that of the other.
    """
    wants: dict[str, ReadRequest] = {}
    for names in (*([n for _, n in leaves(tree)] for tree in trees.values()), found):
        kinds = {n: found[n].kind for n in names if n not in wants}
        regions = {n: _region(kind, shardings[n]) for n, kind in kinds.items()}
        places = {n: homes.place(n, kind) for n, kind in kinds.items()}
        homeless = [n for n, place in places.items() if place is None]
        memory = allocate({n: (regions[n][1], DTYPES[kinds[n].dtype]) for n in homeless})
        for n, place in places.items():
            wants[n] = ReadRequest(kinds[n], regions[n][0], memory[n] if place is None else place)
    return wants


def _region(kind: TensorSpec, sharding: Sharding | None) -> tuple[Region, tuple[int, ...]]:
    """What this rank wants of a tensor, and the shape of that."""
    if sharding is None:
        return ElementRange(0, kind.count), kind.shape
    return sharding.region(kind), sharding.local_shape(kind)


def _whole(
    kind: TensorSpec,
    name: str,
    want: ReadRequest,
    sharding: Sharding | None,
    homes: DestinationTensors,
) -> Tensor:
    """The tensor, after it was read: the live one itself, if it was read straight into that."""
    if homes.place(name, kind) is not None:
        return homes.live[name]
    return want.into if sharding is None else sharding.whole(want.into, kind)
