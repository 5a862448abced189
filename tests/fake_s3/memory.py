"""Memory of the stand-in: bodies of objects in blocks that are used again.

Fresh memory is dearer than all else here: on a virtual machine the first touch of a gigabyte costs 0.2 to 2 CPU
seconds, where receiving it costs 0.15. What an object leaves behind is therefore kept for the next one.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Final

GRAIN: Final = 2 << 20
"""Blocks are multiples of a huge page, so that the kernel touches 512 pages at once."""
SMALL: Final = 1 << 20
"""Bodies below this are ordinary bytearrays: a huge page each would waste more than it saves."""
IDLE_BYTES: Final = 4 << 30
"""How much is kept for later. Less: benchmarks measure the kernel again. More: it is missed elsewhere."""
POPULATE_WRITE: Final = 23
"""The advice of Linux 5.14 that touches a whole block in one call; Python 3.11 has no name for it."""

Memory = bytearray | mmap.mmap


class Body:
    """Some bytes that came in one request. Its memory goes back to the pool with the last one who holds it."""

    __slots__ = ("_memory", "_pool", "view")

    def __init__(self, memory: Memory, size_bytes: int, pool: Pool) -> None:
        self._memory = memory
        self._pool = pool
        self.view = memoryview(memory)[:size_bytes]

    def __len__(self) -> int:
        return len(self.view)

    def touch(self) -> None:
        """Have the kernel provide its memory now."""
        if isinstance(self._memory, mmap.mmap):
            self._memory.madvise(POPULATE_WRITE)

    def __del__(self) -> None:
        if isinstance(self._memory, mmap.mmap):
            self._pool.give(self._memory)


class Pool:
    """Unused blocks of memory. It takes no lock: bodies may end in any thread, at any moment."""

    def __init__(self) -> None:
        self._idle: dict[int, list[mmap.mmap]] = {}
        self._zeros = _fresh(GRAIN)

    def take(self, size_bytes: int) -> Body:
        """A body of this size; what is in it is rubbish."""
        if size_bytes < SMALL:
            return Body(bytearray(size_bytes), size_bytes, self)
        block_bytes = -(-size_bytes // GRAIN) * GRAIN
        try:
            memory = self._idle[block_bytes].pop()
        except (KeyError, IndexError):
            memory = _fresh(block_bytes)
        return Body(memory, size_bytes, self)

    def copy(self, views: list[memoryview]) -> Body:
        """A body of its own with these bytes in it."""
        body = self.take(sum(len(view) for view in views))
        at = 0
        for view in views:
            body.view[at : at + len(view)] = view
            at += len(view)
        return body

    def hollow(self, size_bytes: int) -> Body:
        """A body of zeros, which costs no memory and is not to be written to."""
        if len(self._zeros) < size_bytes:
            self._zeros = _fresh(-(-size_bytes // GRAIN) * GRAIN)
        # A bytearray in its place: nothing of it is to go back to the pool.
        body = Body(bytearray(), 0, self)
        body.view = memoryview(self._zeros)[:size_bytes]
        return body

    def reserve(self, count: int, size_bytes: int) -> None:
        """Make and touch memory for so many bodies, before anything is measured."""
        bodies = [self.take(max(size_bytes, SMALL)) for _ in range(count)]
        for body in bodies:
            body.touch()

    def give(self, memory: mmap.mmap) -> None:
        """Keep a block for later."""
        if self.idle_bytes + len(memory) <= IDLE_BYTES:
            self._idle.setdefault(len(memory), []).append(memory)

    @property
    def idle_bytes(self) -> int:
        """What lies here for later."""
        return sum(size * len(blocks) for size, blocks in list(self._idle.items()))


def _fresh(size_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@dataclass(frozen=True)
class Blob:
    """The content of an object: the bodies that it came in, one behind the other."""

    bodies: tuple[Body, ...]

    def __len__(self) -> int:
        return sum(len(body) for body in self.bodies)

    def views(self, start: int = 0, end: int | None = None) -> list[memoryview]:
        """The bytes from `start` up to `end`, where they lie; None for all that follow."""
        return within([body.view for body in self.bodies], start, len(self) if end is None else end)

    def joined(self) -> bytes:
        """A copy of all of it; for documents, not for data."""
        return b"".join(self.views())

    def span(self, part: int) -> tuple[int, int]:
        """Where a part starts and ends, counted from 1."""
        start = sum(len(body) for body in self.bodies[: part - 1])
        return start, start + len(self.bodies[part - 1])


def within(views: list[memoryview], start: int, end: int) -> list[memoryview]:
    """What of these bytes, one behind the other, lies from `start` up to `end`."""
    found, at = [], 0
    for view in views:
        low, high = max(start - at, 0), min(end - at, len(view))
        if low < high:
            found.append(view[low:high])
        at += len(view)
    return found
