"""Memory on the CPU that is cheap to touch for the first time.

The kernel finds and clears a page when it is first written to. It does 4 KiB at a time if nobody asks for more, which takes
several times as long as the copy that follows; asked for huge pages, 2 MiB.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import torch
from torch import Tensor

from holdfast_worker.layout import GRAIN

K = TypeVar("K")

HUGE_BYTES: Final = 2 << 20
"""Of a huge page. What is smaller than one is got from the allocator, as everything else is."""


def allot(wanted: Mapping[K, tuple[Sequence[int], torch.dtype]]) -> dict[K, Tensor]:
    """Tensors of these shapes and types, of which nothing else is known. They lie in one block of memory, which is given
    back with the last of them; but each has a storage of its own, so that none is saved or moved with its neighbours.

    Raises:
        MemoryError: the machine has not so much.
    """
    sizes = {n: math.prod(shape) * dtype.itemsize for n, (shape, dtype) in wanted.items()}
    block = _block(sum(map(_room, sizes.values())))
    tensors: dict[K, Tensor] = {}
    at = 0
    for name, (shape, dtype) in wanted.items():
        if block is None or not sizes[name]:
            tensors[name] = torch.empty(tuple(shape), dtype=dtype)
            continue
        flat = torch.frombuffer(block, dtype=dtype, count=math.prod(shape), offset=at)
        tensors[name] = flat.reshape(tuple(shape))
        at += _room(sizes[name])
    return tensors


def _block(size: int) -> mmap.mmap | None:
    """Memory of its own; None for less than a huge page.

    Raises:
        MemoryError: the machine has not so much.
    """
    if size < HUGE_BYTES:
        return None
    try:
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes: {error}") from error
    with suppress(OSError):
        # A kernel without huge pages says no, and there is nothing to be done about it.
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _room(size: int) -> int:
    """Bytes that a tensor of so many takes in a block, so that the next one is aligned."""
    return -(-size // GRAIN) * GRAIN
