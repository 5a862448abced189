"""Memory on the CPU that is cheap to touch for the first time.

The kernel finds and clears a page when it is first written to. It does 4 KiB at a time if nobody asks for more, which takes
several times as long as the copy that follows; asked for huge pages, 2 MiB.

The arena: memory of this machine into which a rank's share of the state is copied, again and again.

Fresh memory costs more than the copy, as the kernel has to find and clear each page; so it is got once, touched once, and
reused. On a GPU it is pinned, without which nothing can be copied beside the computing.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import torch
from torch import Tensor

from holdfast_worker.checkpoint.checksums import raw
from holdfast_worker.distributed.tensor_layout import GRAIN

K = TypeVar("K")

HUGE_BYTES: Final = 2 << 20
"""Of a huge page. What is smaller than one is got from the allocator, as everything else is."""


def allocate(wanted: Mapping[K, tuple[Sequence[int], torch.dtype]]) -> dict[K, Tensor]:
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


class StagingBuffer:
    """Memory for one snapshot at a time."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._making: threading.Thread | None = None

    @property
    def size(self) -> int:
        """In bytes."""
        return self._bytes.numel()

    def reserve_soon(self, size: int) -> None:
        """Begin to get that many bytes, beside whatever comes next. What is in it is lost if it grows."""

        def make() -> None:
            # Who needs them asks again, and hears of it then.
            with suppress(MemoryError):
                self._grow(size)

        assert self._making is None, "once, before the first snapshot"
        self._making = threading.Thread(target=make, name="holdfast-arena", daemon=True)
        self._making.start()

    def reserve(self, size: int) -> None:
        """Have that many bytes. What is in it is lost if it grows.

        Raises:
            MemoryError: the machine has not so many.
        """
        if self._making:
            self._making.join()
        self._grow(size)

    def _grow(self, size: int) -> None:
        if size <= self.size:
            return
        # The old one goes first, so that there are never two.
        self._bytes = torch.empty(0, dtype=torch.uint8)
        try:
            # Zeros are written, not promised, so that the pages are there afterwards.
            self._bytes = _fresh(size).zero_()
        except RuntimeError as error:
            raise MemoryError(f"{size} bytes for a snapshot: {error}") from error

    def view(self, at: int, dtype: torch.dtype, count: int) -> Tensor:
        """Some of it as a flat tensor; `at` is a multiple of the size of an element."""
        return self._bytes[at : at + count * dtype.itemsize].view(dtype)

    def memory(self, size: int) -> memoryview:
        """Its first bytes, to be read from."""
        return raw(self._bytes)[:size]


def _fresh(size: int) -> Tensor:
    if torch.cuda.is_available():
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return allocate({0: ((size,), torch.uint8)})[0]
