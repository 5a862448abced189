"""Layouts: which elements of which tensors a rank writes, and their order in its shard.

Pure.

Replicated tensors (parameters under DDP, and their optimizer state) are divided among the ranks, so that N ranks write N times as
fast and copy 1/N each. Each rank writes its part of sharded tensors (FSDP2). Rank 0 writes the rest. Every rank computes
the same division, which depends only on names and sizes.

A shard has no gaps. Its tensors have the order that safetensors requires, largest element size first, so that each is aligned.
Behind a header that names the pieces, a shard is a safetensors file.
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

ALIGNMENT_BYTES: Final = 64
"""Replicated tensors are divided at multiples of this many bytes: a cache line, and whole
elements of any dtype."""

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
"""Supported dtypes under their safetensors names; C32, C128, F4_E2M1X2 and B... are
Holdfast's."""

NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type and shape of a tensor."""

    dtype: str
    """The name that safetensors uses."""
    shape: tuple[int, ...]
    """Shape of the whole tensor, over all ranks."""

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> Self:
        """The spec of a tensor."""
        return cls(NAMES[tensor.dtype], tuple(tensor.shape))

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class ElementRange:
    """Elements `start` to `stop` of a tensor, in row-major order."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def intersection(self, other: ElementRange) -> ElementRange | None:
        """The elements in both; None if there are none."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return ElementRange(start, stop) if start < stop else None


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a tensor that is not a contiguous range of elements."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The block as an index of the whole tensor."""
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))


Region = ElementRange | Block


def region(shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> Region:
    """The block at `offsets`, as an element range if contiguous, like a first-dimension shard."""
    count = math.prod(sizes)
    if count == 0:
        return ElementRange(0, 0)
    # The block is contiguous if all dimensions behind the first one with more than one element are complete.
    wide = next((d for d, n in enumerate(sizes) if n > 1), len(sizes))
    if tuple(sizes[wide + 1 :]) != tuple(shape[wide + 1 :]):
        return Block(tuple(offsets), tuple(sizes))
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    start = sum(o * s for o, s in zip(offsets, strides, strict=True))
    return ElementRange(start, start + count)


class Owner(Enum):
    """Which ranks hold and write a tensor."""

    REPLICATED = auto()
    """All ranks hold equal copies and write a part each."""
    VERIFIED_REPLICA = auto()
    """All ranks hold copies, which are checked for equality; rank 0 writes."""
    RANK_ZERO = auto()
    """The copy of rank 0 counts, and rank 0 writes it."""
    PER_RANK = auto()
    """Each rank holds and writes a separate tensor."""
    SHARDED = auto()
    """Each rank holds and writes a region."""


WRITTEN_BY_RANK_ZERO: Final = frozenset({Owner.VERIFIED_REPLICA, Owner.RANK_ZERO})
"""Owners whose tensors only rank 0 writes."""


def own_name(name: str, rank: int) -> str:
    """The name of a rank's per-rank tensor in a checkpoint."""
    return f"rank-{rank}/{name}" if rank else name


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """This rank's part of a tensor."""

    spec: TensorSpec
    owner: Owner
    region: Region
    """The region that this rank can write."""

    @classmethod
    def whole(cls, kind: TensorSpec, holder: Owner) -> Self:
        """A tensor that this rank holds completely."""
        return cls(kind, holder, ElementRange(0, kind.count))

    @property
    def size(self) -> int:
        """Size of the region in bytes."""
        return self.region.count * self.spec.itemsize


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """Some elements of a tensor in a rank's shard."""

    name: str
    region: Region
    at: int
    """Byte offset in the shard."""
    size: int
    """Size in bytes."""

    @property
    def end(self) -> int:
        """Byte offset behind the piece."""
        return self.at + self.size


def divide_stream(
    held: Mapping[str, LocalTensor], rank: int, world_size: int
) -> tuple[TensorPiece, ...]:
    """The pieces that `rank` writes, in the order of its shard.

    `held` has the same names, specs and owners on all ranks, except for per-rank tensors.
    """
    ordered = sorted(held.items(), key=lambda item: (-item[1].spec.itemsize, item[0]))
    alone = sum(h.size for _, h in ordered if h.owner in WRITTEN_BY_RANK_ZERO)
    shared = sum(h.size for _, h in ordered if h.owner is Owner.REPLICATED)
    mine = _byte_share(shared, alone, rank, world_size)
    pieces: list[TensorPiece] = []
    passed = at = 0
    for name, item in ordered:
        part: Region = item.region
        if item.owner is Owner.REPLICATED:
            part = _elements_within(mine, passed, item)
            passed += item.size
        elif item.owner in WRITTEN_BY_RANK_ZERO and rank:
            continue
        if part.count:
            pieces.append(TensorPiece(name, part, at, part.count * item.spec.itemsize))
            at = pieces[-1].end
    return tuple(pieces)


def compared(held: Mapping[str, LocalTensor], start: int) -> tuple[TensorPiece, ...]:
    """Tensors that rank 0 writes and this rank compares, staged from byte `start` on."""
    alike = [(n, h) for n, h in held.items() if h.owner is Owner.VERIFIED_REPLICA and h.size]
    at = -(-start // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    pieces: list[TensorPiece] = []
    for name, item in sorted(alike, key=lambda item: -item[1].spec.itemsize):
        pieces.append(TensorPiece(name, item.region, at, item.size))
        at = pieces[-1].end
    return tuple(pieces)


def _byte_share(shared: int, alone: int, rank: int, world_size: int) -> ElementRange:
    """The replicated bytes that a rank writes; fewer on rank 0, which also writes the rest."""
    first = max(0, (shared + alone) // world_size - alone) if world_size > 1 else shared
    others = world_size - 1 or 1
    ends = [0, first, *(first + (shared - first) * r // others for r in range(1, world_size))]
    ends = [*(end // ALIGNMENT_BYTES * ALIGNMENT_BYTES for end in ends[:-1]), shared]
    return ElementRange(ends[rank], ends[rank + 1])


def _elements_within(mine: ElementRange, passed: int, item: LocalTensor) -> ElementRange:
    """The elements of a tensor at byte `passed` that are in a rank's byte range."""
    part = mine.intersection(ElementRange(passed, passed + item.size))
    if part is None:
        return ElementRange(0, 0)
    size = item.spec.itemsize
    # Larger element sizes come first, so `passed` is a whole number of these elements.
    return ElementRange((part.start - passed) // size, (part.stop - passed) // size)


def cut_stream(pieces: Sequence[TensorPiece], part_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a shard into stretches within one piece and part, as (first byte, byte behind)."""
    end = pieces[-1].end if pieces else 0
    marks = sorted({*(p.at for p in pieces), *range(0, end, part_bytes), end})
    yield from pairwise(marks)
