"""Memory of the fake S3: bodies of objects in blocks that are reused.

New memory is the largest cost here: on a virtual machine the first touch of a gigabyte costs 0.2 to 2 CPU
seconds, while receiving it costs 0.15. The blocks of deleted objects are therefore kept for later ones.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Final

GRAIN: Final = 2 << 20
"""Block sizes are multiples of a huge page, so that the kernel provides 512 pages at once."""
SMALL: Final = 1 << 20
"""Smaller bodies are bytearrays, as a huge page for each would waste more than it saves."""
IDLE_BYTES: Final = 4 << 30
"""Memory kept for reuse. A lower value adds allocations to benchmarks; a higher one uses more."""
POPULATE_WRITE: Final = 23
"""`MADV_POPULATE_WRITE` of Linux 5.14, which Python 3.11 does not define."""

Memory = bytearray | mmap.mmap


class Body:
    """Bytes of one request. Their memory returns to the pool with the last reference."""

    __slots__ = ("_memory", "_pool", "view")

    def __init__(self, memory: Memory, size_bytes: int, pool: Pool) -> None:
        self._memory = memory
        self._pool = pool
        self.view = memoryview(memory)[:size_bytes]

    def __len__(self) -> int:
        return len(self.view)

    def touch(self) -> None:
        """Make the kernel provide the memory now."""
        if isinstance(self._memory, mmap.mmap):
            self._memory.madvise(POPULATE_WRITE)

    def __del__(self) -> None:
        if isinstance(self._memory, mmap.mmap):
            self._pool.release(self._memory)


class Pool:
    """Unused blocks of memory, without a lock: bodies may end in any thread, at any time."""

    def __init__(self) -> None:
        self._idle: dict[int, list[mmap.mmap]] = {}
        self._zeros = _fresh(GRAIN)

    def allocate(self, size_bytes: int) -> Body:
        """A body of this size with arbitrary content."""
        if size_bytes < SMALL:
            return Body(bytearray(size_bytes), size_bytes, self)
        block_bytes = -(-size_bytes // GRAIN) * GRAIN
        try:
            memory = self._idle[block_bytes].pop()
        except (KeyError, IndexError):
            memory = _fresh(block_bytes)
        return Body(memory, size_bytes, self)

    def copy(self, views: list[memoryview]) -> Body:
        """A new body with a copy of these bytes."""
        body = self.allocate(sum(len(view) for view in views))
        at = 0
        for view in views:
            body.view[at : at + len(view)] = view
            at += len(view)
        return body

    def zeros(self, size_bytes: int) -> Body:
        """A body of zeros, which uses no memory and must not be written to."""
        if len(self._zeros) < size_bytes:
            self._zeros = _fresh(-(-size_bytes // GRAIN) * GRAIN)
        # An empty bytearray instead of a block, so that nothing returns to the pool.
        body = Body(bytearray(), 0, self)
        body.view = memoryview(self._zeros)[:size_bytes]
        return body

    def reserve(self, count: int, size_bytes: int) -> None:
        """Allocate and touch memory for `count` bodies, before a measurement."""
        bodies = [self.allocate(max(size_bytes, SMALL)) for _ in range(count)]
        for body in bodies:
            body.touch()

    def release(self, memory: mmap.mmap) -> None:
        """Keep a block for reuse."""
        if self.idle_bytes + len(memory) <= IDLE_BYTES:
            self._idle.setdefault(len(memory), []).append(memory)

    @property
    def idle_bytes(self) -> int:
        """Size of the unused blocks."""
        return sum(size * len(blocks) for size, blocks in list(self._idle.items()))


def _fresh(size_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@dataclass(frozen=True)
class Blob:
    """The content of an object: the bodies of its parts, in order."""

    bodies: tuple[Body, ...]

    def __len__(self) -> int:
        return sum(len(body) for body in self.bodies)

    def views(self, start: int = 0, end: int | None = None) -> list[memoryview]:
        """Views of the bytes from `start` up to `end`, without a copy; None for the rest."""
        return within([body.view for body in self.bodies], start, len(self) if end is None else end)

    def joined(self) -> bytes:
        """A copy of the whole content; for documents, not for data."""
        return b"".join(self.views())

    def span(self, part: int) -> tuple[int, int]:
        """Start and end of a part, counted from 1."""
        start = sum(len(body) for body in self.bodies[: part - 1])
        return start, start + len(self.bodies[part - 1])


def within(views: list[memoryview], start: int, end: int) -> list[memoryview]:
    """Views of the concatenated bytes from `start` up to `end`."""
    found, at = [], 0
    for view in views:
        low, high = max(start - at, 0), min(end - at, len(view))
        if low < high:
            found.append(view[low:high])
        at += len(view)
    return found
