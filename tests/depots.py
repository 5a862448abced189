"""A checkpoint store in memory, as both sides see it: the worker that writes, and the service that tidies up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.errors import HoldfastError
from holdfast.ports import Clock, Stored, StoreListing
from holdfast_worker.storage.base import Bytes, Missing


@dataclass
class Shed:
    """Objects, each with the time at which it was written."""

    clock: Clock
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)

    def put(self, key: str, data: bytes = b"x") -> None:
        self.objects[key] = (data, self.clock.now())

    def begin(self, epoch: int, step: int) -> None:
        """An epoch is claimed, and begins at a step."""
        for key in [key for key in self.objects if key.startswith("claims/")]:
            del self.objects[key]
        self.put(f"claims/{epoch:012d}")
        self.put(f"starts/{epoch:012d}-{step:012d}")

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix))


class Nowhere:
    """Who is asked before each request, and lets it pass."""

    def __call__(self, operation: str, key: str) -> None:
        pass


@dataclass
class MemoryDepot:
    """The store as the service sees it. `before` is told of each request, and may raise."""

    shed: Shed
    before: Callable[[str, str], None] = field(default_factory=Nowhere)

    def look(self, directory: str) -> StoreListing:
        self.before("look", directory)
        found = [
            Stored(key, len(data), at)
            for key, (data, at) in sorted(self.shed.objects.items())
            if key.startswith(directory)
        ]
        return StoreListing(self.shed.clock.now(), tuple(found))

    def directories(self, prefix: str) -> Sequence[str]:
        self.before("directories", prefix)
        inside = (key for key in self.shed.keys(prefix) if "/" in key)
        return sorted({f"{key.partition('/')[0]}/" for key in inside})

    def has(self, key: str) -> bool:
        self.before("has", key)
        return key in self.shed.objects

    def read(self, key: str) -> bytes | None:
        self.before("read", key)
        found = self.shed.objects.get(key)
        return found[0] if found else None

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.before("delete", key)
            self.shed.objects.pop(key, None)


@dataclass
class Weather:
    """What a depot answers in bad weather: `error` to all that begins so, once it is set."""

    error: HoldfastError | None = None
    operation: str = ""

    def __call__(self, operation: str, key: str) -> None:
        if self.error and operation.startswith(self.operation):
            raise self.error


class TimedStore:
    """The store as a worker sees it."""

    lanes = 1
    is_far = False

    def __init__(self, shed: Shed) -> None:
        self.shed = shed

    def put(self, key: str, data: Bytes) -> None:
        self.shed.put(key, bytes(data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if key in self.shed.objects:
            return False
        self.shed.put(key, data)
        return True

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        found = self.shed.objects.get(key)
        if (found[0] if found else None) != old:
            return False
        self.shed.put(key, new)
        return True

    def get(self, key: str) -> bytes:
        return b"".join(self.stream(key))

    def stream(self, key: str) -> Iterator[memoryview]:
        if key not in self.shed.objects:
            raise Missing(key)
        yield memoryview(self.shed.objects[key][0])

    def list(self, prefix: str) -> list[str]:
        return self.shed.keys(prefix)

    def delete(self, key: str) -> None:
        self.shed.objects.pop(key, None)
