"""Checks that pieces cover a whole: tensors without holes or overlaps, shards without gaps.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from holdfast_worker.checkpoint.metadata import ShardLayout
from holdfast_worker.distributed.tensor_layout import Block, ElementRange, Region, TensorSpec


def is_tiled(shape: Sequence[int], regions: Iterable[Region]) -> bool:
    """Whether each element of a tensor is in exactly one region."""
    present = [r for r in regions if r.count]
    if all(isinstance(r, ElementRange) for r in present):
        return _tiles_range(
            math.prod(shape), ((r.start, r.stop) for r in present if isinstance(r, ElementRange))
        )
    blocks = [r if isinstance(r, Block) else _to_block(shape, r) for r in present]
    return None not in blocks and _tiles_grid(shape, [(b.offsets, b.sizes) for b in blocks if b])


def is_stream(stream: ShardLayout, kinds: Mapping[str, TensorSpec]) -> bool:
    """Whether a shard's pieces are contiguous, of the right size, and match its part count."""
    at = 0
    for stored in stream.pieces:
        piece = stored.piece
        if piece.at != at or piece.size != piece.region.count * kinds[piece.name].itemsize:
            return False
        at = piece.end
    return stream.part_bytes > 0 and len(stream.parts) == -(-at // stream.part_bytes)


def _tiles_range(length: int, spans: Iterable[tuple[int, int]]) -> bool:
    """Whether (start, stop) spans cover a length exactly once."""
    at = 0
    for start, stop in sorted(spans):
        if start != at or stop <= start:
            return False
        at = stop
    return at == length


def _tiles_grid(
    shape: Sequence[int], blocks: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> bool:
    """Whether (offsets, sizes) boxes tile a shape, cut dimension by dimension as shards are."""
    if any(len(offsets) != len(shape) for offsets, _ in blocks):
        return False
    if not shape:
        return len(blocks) == 1
    inside: dict[tuple[int, int], list[tuple[Sequence[int], Sequence[int]]]] = {}
    for offsets, sizes in blocks:
        span = offsets[0], offsets[0] + sizes[0]
        inside.setdefault(span, []).append((offsets[1:], sizes[1:]))
    return _tiles_range(shape[0], inside) and all(
        _tiles_grid(shape[1:], b) for b in inside.values()
    )


def _to_block(shape: Sequence[int], run: ElementRange) -> Block | None:
    """The block equal to a range of elements; None if the range is not a block."""
    first, last = _coordinates(shape, run.start), _coordinates(shape, run.stop - 1)
    block = Block(first, tuple(b - a + 1 for a, b in zip(first, last, strict=True)))
    return block if block.count == run.count else None


def _coordinates(shape: Sequence[int], number: int) -> tuple[int, ...]:
    """Coordinates of an element by its row-major number."""
    place: list[int] = []
    for length in reversed(shape):
        number, index = divmod(number, length)
        place.append(index)
    return tuple(reversed(place))
