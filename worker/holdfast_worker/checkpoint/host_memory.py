"""Host memory with cheap first writes, and the staging buffer that reuses it.

The kernel finds and clears a page at its first write: 4 KiB at a time by default, or 2 MiB with huge pages. With 4 KiB this takes
several times as long as the copy that follows. The staging buffer is therefore allocated and touched once, and reused. With a GPU it
is pinned, as copies that overlap with computation require.
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

from holdfast_worker.checkpoint.checksums import tensor_bytes
from holdfast_worker.distributed.tensor_layout import ALIGNMENT_BYTES

K = TypeVar("K")

HUGE_BYTES: Final = 2 << 20
"""Size of a huge page. Smaller blocks come from the default allocator."""


def allocate(forms: Mapping[K, tuple[Sequence[int], torch.dtype]]) -> dict[K, Tensor]:
    """Allocate uninitialized tensors of these shapes and types.

    They share one block of memory, which is freed with the last of them. Each has its own storage, so that none is saved or
    moved together with its neighbours.

    Raises:
        MemoryError: the machine has too little memory.
    """
    sizes = {n: math.prod(shape) * dtype.itemsize for n, (shape, dtype) in forms.items()}
    block = _map_huge_pages(sum(map(_aligned_size, sizes.values())))
    tensors: dict[K, Tensor] = {}
    at = 0
    for name, (shape, dtype) in forms.items():
        if block is None or not sizes[name]:
            tensors[name] = torch.empty(tuple(shape), dtype=dtype)
            continue
        flat = torch.frombuffer(block, dtype=dtype, count=math.prod(shape), offset=at)
        tensors[name] = flat.reshape(tuple(shape))
        at += _aligned_size(sizes[name])
    return tensors


def _map_huge_pages(size: int) -> mmap.mmap | None:
    """A new memory mapping; None if it is smaller than a huge page.

    Raises:
        MemoryError: the machine has too little memory.
    """
    if size < HUGE_BYTES:
        return None
    try:
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes: {error}") from error
    with suppress(OSError):
        # A kernel without huge pages refuses the advice; small pages then work more slowly.
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _aligned_size(size: int) -> int:
    """Size of a tensor in a block, rounded up so that the next one is aligned."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class StagingBuffer:
    """Host memory for one snapshot at a time."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._growing: threading.Thread | None = None

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._bytes.numel()

    def reserve_async(self, size: int) -> None:
        """Start allocating `size` bytes in the background. Growing discards the contents."""

        def make() -> None:
            # The next reserve() raises the error again in the thread that needs the memory.
            with suppress(MemoryError):
                self._grow(size)

        assert self._growing is None, "once, before the first snapshot"
        self._growing = threading.Thread(target=make, name="holdfast-arena", daemon=True)
        self._growing.start()

    def reserve(self, size: int) -> None:
        """Ensure a size of at least `size` bytes. Growing discards the contents.

        Raises:
            MemoryError: the machine has too little memory.
        """
        if self._growing:
            self._growing.join()
        self._grow(size)

    def _grow(self, size: int) -> None:
        if size <= self.size:
            return
        # The old buffer is freed first, so that two never coexist.
        self._bytes = torch.empty(0, dtype=torch.uint8)
        try:
            # Writing zeros makes the kernel map all pages now.
            self._bytes = _allocate_bytes(size).zero_()
        except RuntimeError as error:
            raise MemoryError(f"{size} bytes for a snapshot: {error}") from error

    def view(self, at: int, dtype: torch.dtype, count: int) -> Tensor:
        """A flat view of part of the buffer; `at` is a multiple of the element size."""
        return self._bytes[at : at + count * dtype.itemsize].view(dtype)

    def memory(self, size: int) -> memoryview:
        """The first bytes of the buffer, for reading."""
        return tensor_bytes(self._bytes)[:size]


def _allocate_bytes(size: int) -> Tensor:
    if torch.cuda.is_available():
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return allocate({0: ((size,), torch.uint8)})[0]
