"""Plans which bytes of which part go where, and reads them in place, verified on the way.

Each rank requests regions of tensors, independent of which rank wrote them: the regions differ after a change of the world
size. A part is read whole, because its checksum covers the whole part. Bytes go straight into live tensors where possible:
for a large state, allocating, clearing and copying memory takes longer than the read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from holdfast_worker.checkpoint.checksums import crc64, tensor_bytes
from holdfast_worker.checkpoint.metadata import CommitMetadata, CorruptCheckpoint, ShardLayout
from holdfast_worker.distributed.sharding import Sharding, local_memory, sharding_of
from holdfast_worker.distributed.tensor_layout import (
    Block,
    ElementRange,
    Region,
    TensorPiece,
    TensorSpec,
)


@dataclass(frozen=True, slots=True)
class DestinationTensors:
    """The live tensors into which a checkpoint is loaded.

    Other tensors are read into newly allocated memory.
    """

    live: Mapping[str, Tensor]
    """Live tensors by their names in checkpoints."""
    parameters: Mapping[str, Tensor]
    """Optimized parameters by the name prefix of their optimizer state, which is empty before
    the first step. State of the same shape as its parameter is sharded like the parameter."""
    own: frozenset[str] = frozenset()
    """Names of per-rank live tensors."""
    per_rank: frozenset[str] | None = None
    """Names of per-rank objects; None for an inspection without live objects."""

    @classmethod
    def empty(cls) -> Self:
        """No destinations, for inspecting a checkpoint."""
        return cls({}, {})

    def per_rank_mismatch(self, each: Collection[str], saved: int, ranks: int) -> str:
        """Why per-rank state (`each`) of `saved` ranks does not fit `ranks` ranks; empty if it does."""
        if self.per_rank is None or not each:
            return ""
        names, shared = ", ".join(sorted(each)), ", ".join(sorted(set(each) - self.per_rank))
        if shared:
            return (
                f"the checkpoint holds {shared} for each rank, but the script tracks one for all ranks: "
                "name it in run.track(..., per_rank=[...]), or use a new store"
            )
        if saved != ranks:
            return (
                f"the checkpoint holds {names} for each of {saved} ranks, but this run has {ranks}: "
                f"resume with {saved} ranks, or use a new store"
            )
        return ""

    def sharding(self, name: str, kind: TensorSpec) -> Sharding | None:
        """How a stored tensor is sharded over these ranks; None if every rank has all of it."""
        if name in self.live:
            return sharding_of(self.live[name])
        parameter = self.parameters.get(name.rpartition(".")[0])
        if parameter is None or tuple(parameter.shape) != kind.shape:
            return None
        return sharding_of(parameter)

    def find(self, name: str, kind: TensorSpec) -> Tensor | None:
        """This rank's live memory of a tensor, if bytes can be read straight into it."""
        tensor = self.live.get(name)
        if tensor is None or TensorSpec.from_tensor(tensor) != kind:
            return None
        here = local_memory(tensor).detach()
        # Lazily conjugated or negated tensors store bytes that differ from their values.
        is_plain = here.is_contiguous() and not here.is_conj() and not here.is_neg()
        return here if here.device.type == "cpu" and is_plain else None


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A region of a tensor, and the memory to read it into."""

    spec: TensorSpec
    region: Region
    into: Tensor
    """Contiguous, on the CPU, with as many elements as the region."""


@dataclass(frozen=True, slots=True, order=True)
class PartId:
    """A part of a rank's bytes."""

    rank: int
    number: int


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """A stretch of a part, and its destination memory."""

    offset: int
    """First byte, relative to the part."""
    into: memoryview


@dataclass
class ReadPlan:
    """All reads for a set of requests."""

    targets: dict[PartId, list[ReadTarget]] = field(default_factory=dict)
    """Targets by part, in byte order."""
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    """Actions after all reads, which copy blocks that were read whole to their destinations."""


def plan_reads(commit: CommitMetadata, requests: Mapping[str, ReadRequest]) -> ReadPlan:
    """Plan the reads for `requests`.

    Raises:
        CorruptCheckpoint: a requested element was not written.
    """
    plan = ReadPlan()
    found = dict.fromkeys(requests, 0)
    for rank, stream in enumerate(commit.streams):
        for stored in stream.pieces:
            piece = stored.piece
            request = requests.get(piece.name)
            if request:
                found[piece.name] += _plan_piece(plan, rank, stream, piece, request)
    for name, request in requests.items():
        if found[name] != request.region.count:
            raise CorruptCheckpoint(f"no rank wrote all of {name}")
    for targets in plan.targets.values():
        targets.sort(key=lambda target: target.offset)
    return plan


def _plan_piece(
    plan: ReadPlan, rank: int, stream: ShardLayout, piece: TensorPiece, request: ReadRequest
) -> int:
    """Plan the read of one piece; return how many requested elements it has."""
    size = request.spec.itemsize
    if isinstance(piece.region, ElementRange) and isinstance(request.region, ElementRange):
        both = piece.region.intersection(request.region)
        if both is None:
            return 0
        memory = tensor_bytes(request.into)[
            (both.start - request.region.start) * size : (both.stop - request.region.start) * size
        ]
        _add_targets(
            plan, rank, stream, piece.at + (both.start - piece.region.start) * size, memory
        )
        return both.count
    count, put = _overlap(request, piece.region)
    if count:
        whole = torch.empty(piece.region.count, dtype=request.into.dtype)
        _add_targets(plan, rank, stream, piece.at, tensor_bytes(whole))
        plan.afterwards.append(lambda: put(whole))
    return count


def _add_targets(
    plan: ReadPlan, rank: int, stream: ShardLayout, at: int, memory: memoryview
) -> None:
    """Read `memory` from a rank's bytes starting at `at`, which may span several parts."""
    while memory:
        number = at // stream.part_bytes
        begin, end = stream.bounds(number)
        here, memory = memory[: end - at], memory[end - at :]
        plan.targets.setdefault(PartId(rank, number), []).append(ReadTarget(at - begin, here))
        at = end


def _overlap(request: ReadRequest, region: Region) -> tuple[int, Callable[[Tensor], None]]:
    """Count the elements in both regions; return also a function that copies them."""
    mask = torch.zeros(request.spec.shape, dtype=torch.bool)
    _view(mask, region).fill_(True)
    chosen = _view(mask, request.region).reshape(-1).clone()
    covered = torch.zeros(request.spec.shape, dtype=torch.bool)
    _view(covered, request.region).fill_(True)
    selected = _view(covered, region).reshape(-1)

    def put(values: Tensor) -> None:
        request.into.view(-1)[chosen] = values[selected]

    return int(chosen.sum()), put


def _view(whole: Tensor, region: Region) -> Tensor:
    """A view of a region of a contiguous tensor."""
    if isinstance(region, Block):
        return whole[region.slices]
    return whole.view(-1)[region.start : region.stop]


def destinations_of(targets: Sequence[ReadTarget]) -> list[memoryview]:
    """The memory for the bytes of a part, from its first byte to the last requested one."""
    views, at = list[memoryview](), 0
    for target in targets:
        if target.offset > at:  # Not requested, but part of the checksum.
            views.append(memoryview(bytearray(target.offset - at)))
        views.append(target.into)
        at = target.offset + len(target.into)
    return views


def checksum(chunks: Iterable[memoryview]) -> tuple[int, int]:
    """Return the number of bytes and their CRC64-NVME."""
    size = value = 0
    for chunk in chunks:
        value = crc64(chunk, value)
        size += len(chunk)
    return size, value


def gather(targets: Sequence[ReadTarget], part: memoryview) -> None:
    """Reassemble a part from the targets that it was read into."""
    for target in targets:
        part[target.offset : target.offset + len(target.into)] = target.into


def fill(targets: Sequence[ReadTarget], part: memoryview) -> None:
    """Write a part to its targets."""
    for target in targets:
        target.into[:] = part[target.offset : target.offset + len(target.into)]
