"""The arena: memory of this machine into which a rank's share of the state is copied, again and again.

Fresh memory costs more than the copy, as the kernel has to find and clear each page; so it is got once, touched once, and
reused. On a GPU it is pinned, without which nothing can be copied beside the computing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast_worker.digest import raw


class Arena:
    """Memory for one snapshot at a time."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    @property
    def size(self) -> int:
        """In bytes."""
        return self._bytes.numel()

    def reserve(self, size: int) -> None:
        """Have that many bytes. What is in it is lost if it grows.

        Raises:
            MemoryError: the machine has not so many.
        """
        if size <= self.size:
            return
        # The old one goes first, so that there are never two.
        self._bytes = torch.empty(0, dtype=torch.uint8)
        try:
            # Zeros are written, not promised, so that the pages are there afterwards.
            fresh = torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
            self._bytes = fresh.zero_()
        except RuntimeError as error:
            raise MemoryError(f"{size} bytes for a snapshot: {error}") from error

    def view(self, at: int, dtype: torch.dtype, count: int) -> Tensor:
        """Some of it as a flat tensor; `at` is a multiple of the size of an element."""
        return self._bytes[at : at + count * dtype.itemsize].view(dtype)

    def memory(self, size: int) -> memoryview:
        """Its first bytes, to be read from."""
        return raw(self._bytes)[:size]
