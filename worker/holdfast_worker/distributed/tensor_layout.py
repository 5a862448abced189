"""Layouts: which elements of which tensor a rank writes, and where they lie in its stream of bytes. Pure.

What all ranks hold alike (parameters under DDP, and what optimizers made of them) is cut into one share for each rank, so
that N ranks write N times as fast and copy 1/N of it. What is sharded (FSDP2), each rank writes as far as it holds it.
The rest is the first rank's. Every rank comes to the same division by itself, as it depends on names and sizes alone.

A stream has no holes, and its tensors lie in the order that safetensors demands, those of the longest elements first, so
that each is aligned. Behind a header that names its pieces, a rank's stream is a safetensors file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Final, Self

import torch
from torch import Tensor

GRAIN: Final = 64
"""Shares are cut at multiples of this, in bytes: a cache line, and a whole number of elements of any kind."""

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "C32": torch.complex32,
    "C64": torch.complex64,
    "C128": torch.complex128,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4_E2M1X2": torch.float4_e2m1fn_x2,
    "B8": torch.bits8,
    "B16": torch.bits16,
    "B1X8": torch.bits1x8,
    "B2X4": torch.bits2x4,
    "B4X2": torch.bits4x2,
}
"""What a checkpoint can hold, under the names that safetensors has for it; C32, C128, F4_E2M1X2 and B... are ours."""

NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its values."""

    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    """Of the whole, over all ranks."""

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """What a tensor is."""
        return cls(NAMES[tensor.dtype], tuple(tensor.shape))

    @property
    def count(self) -> int:
        """Of its elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class ElementRange:
    """Elements `start` to `stop` of a tensor, counted row by row."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        """Of elements."""
        return self.stop - self.start

    def meet(self, other: ElementRange) -> ElementRange | None:
        """The elements in both; None if there are none."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return ElementRange(start, stop) if start < stop else None


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a tensor that is not one run of its elements."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """Of elements."""
        return math.prod(self.sizes)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The block as an index of the whole tensor."""
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))


Region = ElementRange | Block


def region(shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> Region:
    """The block of a tensor at `offsets`; a run wherever it is one, as a shard along the first dimension is."""
    count = math.prod(sizes)
    if count == 0:
        return ElementRange(0, 0)
    # It is one if it is whole in all dimensions behind the first in which it is more than one element.
    wide = next((d for d, n in enumerate(sizes) if n > 1), len(sizes))
    if tuple(sizes[wide + 1 :]) != tuple(shape[wide + 1 :]):
        return Block(tuple(offsets), tuple(sizes))
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    start = sum(o * s for o, s in zip(offsets, strides, strict=True))
    return ElementRange(start, start + count)


class Owner(Enum):
    """Who has a tensor."""

    ALL = auto()
    """All ranks have all of it, and the same."""
    ALIKE = auto()
    """All ranks have all of it, and the first one writes it; that it is the same is checked."""
    FIRST = auto()
    """What the first rank has counts, whatever the others have."""
    EACH = auto()
    """Each rank has its own, and writes it."""
    SHARDS = auto()
    """Each rank has a region of it."""


OF_FIRST: Final = frozenset({Owner.ALIKE, Owner.FIRST})
"""What the first rank writes alone."""


def own_name(name: str, rank: int) -> str:
    """The name in a checkpoint of a tensor that each rank has for itself."""
    return f"rank-{rank}/{name}" if rank else name


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """What a rank has of a tensor."""

    kind: TensorSpec
    holder: Owner
    region: Region
    """What this rank can write of it."""

    @classmethod
    def whole(cls, kind: TensorSpec, holder: Owner) -> Self:
        """All of it."""
        return cls(kind, holder, ElementRange(0, kind.count))

    @property
    def size(self) -> int:
        """Of the region, in bytes."""
        return self.region.count * self.kind.itemsize


@dataclass(frozen=True, slots=True)
class Piece:
    """Some elements of a tensor in a rank's stream."""

    name: str
    region: Region
    at: int
    """First byte in the stream."""
    size: int
    """In bytes."""

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.at + self.size


def divide(held: Mapping[str, LocalTensor], rank: int, world_size: int) -> tuple[Piece, ...]:
    """What `rank` writes of all that it has, in the order of its stream.

    `held` has the same names, kinds and holders on all ranks, but for what each of them has for itself.
    """
    ordered = sorted(held.items(), key=lambda item: (-item[1].kind.itemsize, item[0]))
    alone = sum(h.size for _, h in ordered if h.holder in OF_FIRST)
    shared = sum(h.size for _, h in ordered if h.holder is Owner.ALL)
    mine = _share(shared, alone, rank, world_size)
    pieces: list[Piece] = []
    passed = at = 0
    for name, item in ordered:
        part: Region = item.region
        if item.holder is Owner.ALL:
            part = _within(mine, passed, item)
            passed += item.size
        elif item.holder in OF_FIRST and rank:
            continue
        if part.count:
            pieces.append(Piece(name, part, at, part.count * item.kind.itemsize))
            at = pieces[-1].end
    return tuple(pieces)


def compared(held: Mapping[str, LocalTensor], start: int) -> tuple[Piece, ...]:
    """The tensors of which a rank writes nothing and has to say what it has, as pieces of its memory from byte `start` on."""
    alike = [(n, h) for n, h in held.items() if h.holder is Owner.ALIKE and h.size]
    at = -(-start // GRAIN) * GRAIN
    pieces: list[Piece] = []
    for name, item in sorted(alike, key=lambda item: -item[1].kind.itemsize):
        pieces.append(Piece(name, item.region, at, item.size))
        at = pieces[-1].end
    return tuple(pieces)


def _share(shared: int, alone: int, rank: int, world_size: int) -> ElementRange:
    """The bytes of all that is shared that a rank writes; the first one, which writes what it has alone, gets less."""
    first = max(0, (shared + alone) // world_size - alone) if world_size > 1 else shared
    others = world_size - 1 or 1
    ends = [0, first, *(first + (shared - first) * r // others for r in range(1, world_size))]
    ends = [*(end // GRAIN * GRAIN for end in ends[:-1]), shared]
    return ElementRange(ends[rank], ends[rank + 1])


def _within(mine: ElementRange, passed: int, item: LocalTensor) -> ElementRange:
    """The elements of a tensor, of which `passed` bytes of others lie before it, that are in a share of bytes."""
    part = mine.meet(ElementRange(passed, passed + item.size))
    if part is None:
        return ElementRange(0, 0)
    size = item.kind.itemsize
    # Those of the longest elements come first, so that all that lies before is a whole number of these.
    return ElementRange((part.start - passed) // size, (part.stop - passed) // size)


def cuts(pieces: Sequence[Piece], part_bytes: int) -> Iterator[tuple[int, int]]:
    """The stream in stretches that belong to one piece and one part each, as (first byte, byte behind the last)."""
    end = pieces[-1].end if pieces else 0
    marks = sorted({*(p.at for p in pieces), *range(0, end, part_bytes), end})
    yield from pairwise(marks)
