"""The arena: memory of this machine into which a rank's share of the state is copied, again and again.

Fresh memory costs more than the copy, as the kernel has to find and clear each page; so it is got once, touched once, and
reused. On a GPU it is pinned, without which nothing can be copied beside the computing.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import torch
from torch import Tensor

from holdfast_worker.digest import raw
from holdfast_worker.pages import allot


class Arena:
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
    return allot({0: ((size,), torch.uint8)})[0]
