"""Collective reads: all ranks read one checkpoint and agree whether it is intact.

A storage error or corruption on one rank is raised on all ranks, so that no rank waits forever in a collective.
Where it is faster, each rank reads a share and broadcasts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from holdfast_worker.checkpoint.checksums import tensor_bytes
from holdfast_worker.checkpoint.host_memory import allocate
from holdfast_worker.checkpoint.metadata import (
    CommitMetadata,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    PartialLoadError,
    UnavailableObject,
)
from holdfast_worker.checkpoint.read_plan import (
    DestinationTensors,
    PartId,
    ReadPlan,
    ReadRequest,
    fill,
    gather,
    plan_reads,
)
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.state_dict import decode, tensor_paths
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

STORE_ERRORS: Final = (StoreError, IncompatibleCheckpoint)
"""Errors that a retry may resolve, and errors that it cannot."""

CORRUPTION_ERRORS: Final = (CorruptCheckpoint, UnavailableObject)
"""Errors of a checkpoint that is corrupt, and of one that may be intact."""


@contextmanager
def fail_together(ranks: ProcessGroup) -> Iterator[None]:
    """Raise a storage error or corruption on all ranks if the block raises it on any rank.

    The block must not leave by any other exception on one rank alone.

    Raises:
        StoreError: the store error of the lowest rank that has one.
        IncompatibleCheckpoint: likewise, if the checkpoint has another format or belongs to another job.
        CorruptCheckpoint: the corruption found by the lowest rank that found any.
        UnavailableObject: likewise, if the store does not return one of its objects.
    """
    reason = problem = ""
    try:
        yield
    except StoreError as error:
        reason = (
            f"{isinstance(error, IncompatibleCheckpoint):d}{str(error) or type(error).__name__}"
        )
    except CorruptCheckpoint as damage:
        problem = f"{isinstance(damage, UnavailableObject):d}{damage}"
    reason = ranks.first_message(reason)
    if reason:
        raise STORE_ERRORS[int(reason[0])](reason[1:])
    problem = ranks.first_message(problem)
    if problem:
        raise CORRUPTION_ERRORS[int(problem[0])](problem[1:])


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint that was read and verified."""

    commit: CommitMetadata
    tracked: dict[str, Any]
    """State by tracked name."""
    names: frozenset[str]
    """Names of all its tensors."""
    owns: Mapping[int, Any]
    """Per-rank state by rank: of this rank, or of all saving ranks if the world size changed."""

    @property
    def name(self) -> CheckpointName:
        """The name of the checkpoint."""
        return self.commit.name

    @property
    def world_size(self) -> int:
        """Number of ranks that saved it."""
        return self.commit.world_size


def read_checkpoint(
    repository: CheckpointRepository,
    ranks: ProcessGroup,
    destinations: DestinationTensors,
    name: CheckpointName,
    until_s: float,
) -> LoadedCheckpoint:
    """Read a checkpoint, in place where destinations exist.

    A collective call with the same result on all ranks.

    Raises:
        CorruptCheckpoint: a rank cannot use it; nothing was changed.
        StateMismatch: it was saved by a different number of ranks or holds different objects; nothing was changed.
        PartialLoadError: part of it proved corrupt after other parts were loaded in place.
        StoreError: the store does not respond on a rank.
    """
    with fail_together(ranks):
        commit = repository.read_commit(name, until_s)
    problem = destinations.per_rank_mismatch(commit.each, commit.world_size, ranks.world_size)
    if problem:
        raise StateMismatch(problem)
    is_same = commit.world_size == ranks.world_size
    writers = [ranks.rank] if is_same else range(commit.world_size)
    with fail_together(ranks):
        records = {writer: repository.read_record(commit, writer, until_s) for writer in writers}
        owns = {writer: decode(record.own, {}) for writer, record in records.items()}
        mine = records[ranks.rank].tracked if is_same else {}
        trees: dict[str, Json] = {**_trees(commit.tracked), **_trees(mine)}
        found = _find_tensors(commit, trees, destinations, ranks.rank if is_same else 0)
        shardings = {n: destinations.sharding(n, item.spec) for n, item in found.items()}
        requests = _read_requests(found, trees, destinations, shardings)
        plan, own_plan = (
            plan_reads(
                commit, {f.stored: requests[n] for n, f in found.items() if f.is_own is is_own}
            )
            for is_own in (False, True)
        )
    try:
        if ranks.world_size > 1 and not any(shardings.values()) and repository.is_remote:
            _read_shares(repository, ranks, commit, plan, until_s)
        else:
            with fail_together(ranks):
                repository.read_parts(commit, plan.targets, until_s)
        with fail_together(ranks):
            repository.read_parts(commit, own_plan.targets, until_s)
    except CorruptCheckpoint as damage:
        is_in_place = any(destinations.find(n, item.spec) is not None for n, item in found.items())
        if not ranks.all_reduce_max([float(is_in_place)])[0]:
            raise  # All ranks read into newly allocated memory only.
        raise PartialLoadError(str(damage)) from damage
    for finish in (*plan.afterwards, *own_plan.afterwards):
        finish()
    tensors = {
        n: _assemble(item.spec, n, requests[n], shardings[n], destinations)
        for n, item in found.items()
    }
    return LoadedCheckpoint(commit, decode(trees, tensors), frozenset(requests), owns)


def _trees(raw: Any) -> dict[str, Json]:
    """Encoded trees by object name; older shard metadata without per-rank objects has null."""
    return dict(raw or {})


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    """A tensor to read from a checkpoint."""

    stored: str
    """The name in the checkpoint."""
    spec: TensorSpec
    is_own: bool
    """Whether ranks have different tensors under this name."""


def _find_tensors(
    commit: CommitMetadata, trees: Mapping[str, Json], destinations: DestinationTensors, rank: int
) -> dict[str, _TensorEntry]:
    """The tensors to read, by their names in the trees; an inspection reads those of all ranks.

    Raises:
        CorruptCheckpoint: a tensor is missing.
    """
    found: dict[str, _TensorEntry] = {}
    for name, tree in trees.items():
        for _, n in tensor_paths(tree):
            stored = own_name(n, rank)
            is_own = name in commit.each or (n in destinations.own and stored in commit.kinds)
            stored = stored if is_own else n
            if stored not in commit.kinds:
                raise CorruptCheckpoint(f"no rank wrote {stored}")
            found[n] = _TensorEntry(stored, commit.kinds[stored], is_own)
    if destinations.per_rank is None:
        read = {item.stored for item in found.values()}
        others = {
            n: _TensorEntry(n, k, is_own=True) for n, k in commit.kinds.items() if n not in read
        }
        found |= others
    return found


def _read_shares(
    repository: CheckpointRepository,
    ranks: ProcessGroup,
    commit: CommitMetadata,
    plan: ReadPlan,
    until_s: float,
) -> None:
    """Read 1/N of the parts on each of N ranks, and broadcast each part from its reader."""
    parts = sorted(plan.targets)
    readers = {part: i * ranks.world_size // len(parts) for i, part in enumerate(parts)}
    own = {part: plan.targets[part] for part in parts if readers[part] == ranks.rank}
    with fail_together(ranks):
        repository.read_parts(commit, own, until_s)
    passing = torch.empty(max((_size(commit, p) for p in parts), default=0), dtype=torch.uint8)
    for part in parts:
        buffer = passing[: _size(commit, part)]
        if part in own:
            gather(own[part], tensor_bytes(buffer))
        ranks.broadcast_buffer(buffer, readers[part])
        if part not in own:
            fill(plan.targets[part], tensor_bytes(buffer))


def _size(commit: CommitMetadata, part: PartId) -> int:
    begin, end = commit.streams[part.rank].bounds(part.number)
    return end - begin


def _read_requests(
    found: Mapping[str, _TensorEntry],
    trees: Mapping[str, Json],
    destinations: DestinationTensors,
    shardings: Mapping[str, Sharding | None],
) -> dict[str, ReadRequest]:
    """Request each tensor into its destination or into new memory, one block per tracked object.

    An optimizer keeps the tensors that it loads and a model copies them, so their memory must be separate.
    """
    requests: dict[str, ReadRequest] = {}
    for names in (*([n for _, n in tensor_paths(tree)] for tree in trees.values()), found):
        kinds = {n: found[n].spec for n in names if n not in requests}
        regions = {n: _region(kind, shardings[n]) for n, kind in kinds.items()}
        places = {n: destinations.find(n, kind) for n, kind in kinds.items()}
        missing = [n for n, place in places.items() if place is None]
        memory = allocate({n: (regions[n][1], DTYPES[kinds[n].dtype]) for n in missing})
        for n, place in places.items():
            requests[n] = ReadRequest(
                kinds[n], regions[n][0], memory[n] if place is None else place
            )
    return requests


def _region(kind: TensorSpec, sharding: Sharding | None) -> tuple[Region, tuple[int, ...]]:
    """The region of a tensor that this rank needs, and its shape."""
    if sharding is None:
        return ElementRange(0, kind.count), kind.shape
    return sharding.region(kind), sharding.local_shape(kind)


def _assemble(
    kind: TensorSpec,
    name: str,
    request: ReadRequest,
    sharding: Sharding | None,
    destinations: DestinationTensors,
) -> Tensor:
    """The tensor after the read: the live tensor itself if it was read in place."""
    if destinations.find(name, kind) is not None:
        return destinations.live[name]
    return request.into if sharding is None else sharding.assemble(request.into, kind)
