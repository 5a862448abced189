"""A checkpoint store in memory, with the interfaces of the worker and of the service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.errors import HoldfastError
from holdfast.ports import Clock, StoredObject, StoreListing
from holdfast_worker.storage.base import Bytes, ObjectNotFound, copy_chunks


@dataclass
class MemoryObjects:
    """Objects with their modification times."""

    clock: Clock
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)

    def put(self, key: str, data: bytes = b"x") -> None:
        self.objects[key] = (data, self.clock.now())

    def begin(self, epoch: int, step: int) -> None:
        """Claim an epoch, which starts at a step."""
        for key in [key for key in self.objects if key.startswith("claims/")]:
            del self.objects[key]
        self.put(f"claims/{epoch:012d}")
        self.put(f"starts/{epoch:012d}-{step:012d}")

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix))


class NoFault:
    """A request hook that raises no error."""

    def __call__(self, operation: str, key: str) -> None:
        pass


@dataclass
class MemoryBucket:
    """The store with the interface of the service.

    `before` is called for each request and may raise.
    """

    bucket_objects: MemoryObjects
    before: Callable[[str, str], None] = field(default_factory=NoFault)

    def list_objects(self, directory: str) -> StoreListing:
        self.before("look", directory)
        found = [
            StoredObject(key, len(data), at)
            for key, (data, at) in sorted(self.bucket_objects.objects.items())
            if key.startswith(directory)
        ]
        return StoreListing(self.bucket_objects.clock.now(), tuple(found))

    def list_directories(self, prefix: str) -> Sequence[str]:
        self.before("directories", prefix)
        inside = (key for key in self.bucket_objects.keys(prefix) if "/" in key)
        return sorted({f"{key.partition('/')[0]}/" for key in inside})

    def has(self, key: str) -> bool:
        self.before("has", key)
        return key in self.bucket_objects.objects

    def read(self, key: str) -> bytes | None:
        self.before("read", key)
        found = self.bucket_objects.objects.get(key)
        return found[0] if found else None

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.before("delete", key)
            self.bucket_objects.objects.pop(key, None)


@dataclass
class StoreFaults:
    """A request hook that raises `error`, once set, for operations that start with `operation`."""

    error: HoldfastError | None = None
    operation: str = ""

    def __call__(self, operation: str, key: str) -> None:
        if self.error and operation.startswith(self.operation):
            raise self.error


class TimedStore:
    """The store with the interface of the worker."""

    max_concurrency = 1
    is_remote = False

    def __init__(self, bucket_objects: MemoryObjects) -> None:
        self.bucket_objects = bucket_objects

    def put(self, key: str, data: Bytes) -> None:
        self.bucket_objects.put(key, bytes(data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if key in self.bucket_objects.objects:
            return False
        self.bucket_objects.put(key, data)
        return True

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        found = self.bucket_objects.objects.get(key)
        if (found[0] if found else None) != old:
            return False
        self.bucket_objects.put(key, new)
        return True

    def get(self, key: str) -> bytes:
        return b"".join(self.stream(key))

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        if key not in self.bucket_objects.objects:
            raise ObjectNotFound(key)
        yield from copy_chunks([memoryview(self.bucket_objects.objects[key][0])], into, 1 << 20)

    def list(self, prefix: str) -> list[str]:
        return self.bucket_objects.keys(prefix)

    def delete(self, key: str) -> None:
        self.bucket_objects.objects.pop(key, None)
