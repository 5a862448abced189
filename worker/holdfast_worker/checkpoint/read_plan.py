"""Homes: where in this process the tensors of a checkpoint belong, so that they can be read straight to their places.

Memory that is there already need not be found, cleared and copied from: for a large state that takes longer than reading it.

Reading a checkpoint back: which bytes of which part go where, and the bytes themselves, verified on the way.

Each rank says which region it wants of each tensor, whoever wrote it: after a change of the number of ranks these are
others than were written. A part is read whole, as its digest is that of the whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from holdfast_worker.checkpoint.checksums import crc, raw
from holdfast_worker.checkpoint.metadata import CommitMetadata, CorruptCheckpoint, ShardLayout
from holdfast_worker.distributed.sharding import Sharding, memory_of, sharding_of
from holdfast_worker.distributed.tensor_layout import Block, ElementRange, Piece, Region, TensorSpec


@dataclass(frozen=True, slots=True)
class DestinationTensors:
    """The tensors that are there. What has no home is read into memory of its own."""

    live: Mapping[str, Tensor]
    """By the names that they have in checkpoints."""
    parameters: Mapping[str, Tensor]
    """What an optimizer optimizes, by the beginning of the names of what it will keep of each. It has no state before its
    first step; what it will have of the shape of its parameter is spread over the ranks as that."""
    own: frozenset[str] = frozenset()
    """Names of live tensors of which each rank has its own."""
    each: frozenset[str] | None = None
    """Names of the objects of which each rank has its own; None for who only looks."""

    @classmethod
    def none(cls) -> Self:
        """For who only looks into a checkpoint."""
        return cls({}, {})

    def flaw(self, each: Collection[str], saved: int, ranks: int) -> str:
        """Why a checkpoint of `saved` ranks, which has the state of `each` rank of these objects, fits no `ranks`; empty if it does."""
        if self.each is None or not each:
            return ""
        names, shared = ", ".join(sorted(each)), ", ".join(sorted(set(each) - self.each))
        if shared:
            return (
                f"the checkpoint holds {shared} for each rank, and the script tracks one for all ranks: "
                "name it in run.track(..., per_rank=[...]), or start with a new store"
            )
        if saved != ranks:
            return (
                f"the checkpoint holds {names} for each of {saved} ranks, and there are {ranks} now: "
                f"resume with {saved} ranks, or start with a new store"
            )
        return ""

    def sharding(self, name: str, kind: TensorSpec) -> Sharding | None:
        """How a tensor of a checkpoint is spread over these ranks; None for one that every rank has."""
        if name in self.live:
            return sharding_of(self.live[name])
        parameter = self.parameters.get(name.rpartition(".")[0])
        if parameter is None or tuple(parameter.shape) != kind.shape:
            return None
        return sharding_of(parameter)

    def place(self, name: str, kind: TensorSpec) -> Tensor | None:
        """What this rank has of a tensor, if its bytes can be read straight into it."""
        tensor = self.live.get(name)
        if tensor is None or TensorSpec.of(tensor) != kind:
            return None
        here = memory_of(tensor).detach()
        # The bytes of what is conjugated or negated only when it is read are not its values.
        is_plain = here.is_contiguous() and not here.is_conj() and not here.is_neg()
        return here if here.device.type == "cpu" and is_plain else None


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A region of a tensor, and the memory for it."""

    kind: TensorSpec
    region: Region
    into: Tensor
    """Contiguous, on the CPU, of as many elements as the region has."""


@dataclass(frozen=True, slots=True, order=True)
class PartId:
    """A part of a rank's stream."""

    rank: int
    number: int


@dataclass(frozen=True, slots=True)
class Target:
    """A stretch of a part, and the memory that it belongs in."""

    at: int
    """First byte, counted in the part."""
    into: memoryview


@dataclass
class ReadPlan:
    """All that is to be read for what is wanted."""

    targets: dict[PartId, list[Target]] = field(default_factory=dict)
    """By part, in the order of its bytes."""
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done once all is read: blocks that had to be read whole are put into their places."""


def plan(commit: CommitMetadata, wants: Mapping[str, ReadRequest]) -> ReadPlan:
    """What to read for `wants`.

    Raises:
        Damaged: nobody wrote some of it.
    """
    made = ReadPlan()
    found = dict.fromkeys(wants, 0)
    for rank, stream in enumerate(commit.streams):
        for stored in stream.pieces:
            piece = stored.piece
            want = wants.get(piece.name)
            if want:
                found[piece.name] += _plan_piece(made, rank, stream, piece, want)
    for name, want in wants.items():
        if found[name] != want.region.count:
            raise CorruptCheckpoint(f"no rank wrote all of {name}")
    for targets in made.targets.values():
        targets.sort(key=lambda target: target.at)
    return made


def _plan_piece(
    made: ReadPlan, rank: int, stream: ShardLayout, piece: Piece, want: ReadRequest
) -> int:
    """How many elements of what is wanted a piece has."""
    size = want.kind.itemsize
    if isinstance(piece.region, ElementRange) and isinstance(want.region, ElementRange):
        both = piece.region.meet(want.region)
        if both is None:
            return 0
        memory = raw(want.into)[
            (both.start - want.region.start) * size : (both.stop - want.region.start) * size
        ]
        _aim(made, rank, stream, piece.at + (both.start - piece.region.start) * size, memory)
        return both.count
    count, put = _meet(want, piece.region)
    if count:
        whole = torch.empty(piece.region.count, dtype=want.into.dtype)
        _aim(made, rank, stream, piece.at, raw(whole))
        made.afterwards.append(lambda: put(whole))
    return count


def _aim(made: ReadPlan, rank: int, stream: ShardLayout, at: int, memory: memoryview) -> None:
    """Fill memory with the bytes of a stream from `at` on, which may lie in several parts."""
    while memory:
        number = at // stream.part_bytes
        begin, end = stream.bounds(number)
        here, memory = memory[: end - at], memory[end - at :]
        made.targets.setdefault(PartId(rank, number), []).append(Target(at - begin, here))
        at = end


def _meet(want: ReadRequest, region: Region) -> tuple[int, Callable[[Tensor], None]]:
    """How many elements are in both regions, of which one is a block at least; and what puts them there."""
    mask = torch.zeros(want.kind.shape, dtype=torch.bool)
    _in(mask, region).fill_(True)
    chosen = _in(mask, want.region).reshape(-1).clone()
    wanted = torch.zeros(want.kind.shape, dtype=torch.bool)
    _in(wanted, want.region).fill_(True)
    given = _in(wanted, region).reshape(-1)

    def put(values: Tensor) -> None:
        want.into.view(-1)[chosen] = values[given]

    return int(chosen.sum()), put


def _in(whole: Tensor, region: Region) -> Tensor:
    """A region of a contiguous tensor, as a view."""
    if isinstance(region, Block):
        return whole[region.slices]
    return whole.view(-1)[region.start : region.stop]


def scatter(stretches: Iterable[memoryview], targets: Sequence[Target]) -> tuple[int, int]:
    """Put the bytes of a part where they belong, as they come; how many there were, and their CRC64-NVME.

    If these are not what was committed, what lies in the targets must not be used.
    """
    starts = [target.at for target in targets]
    at = value = 0
    for stretch in stretches:
        value = crc(stretch, value)
        fill(targets[max(0, bisect_right(starts, at) - 1) :], stretch, at)
        at += len(stretch)
    return at, value


def gather(targets: Sequence[Target], part: memoryview) -> None:
    """The other way round: have a part as it was read, from where its bytes were put."""
    for target in targets:
        part[target.at : target.at + len(target.into)] = target.into


def fill(targets: Sequence[Target], stretch: memoryview, at: int) -> None:
    """Put a stretch of a part, `at` which it begins, where it belongs."""
    end = at + len(stretch)
    for target in targets:
        if target.at >= end:
            break
        start, stop = max(target.at, at), min(target.at + len(target.into), end)
        if start < stop:
            target.into[start - target.at : stop - target.at] = stretch[start - at : stop - at]
