"""Counts the requests to a store and the bytes that they move, for the bill of the job.

Each try is counted, as stores charge for each; bytes are counted once they have arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Final

from holdfast_worker.protocol.store_usage import StoreUsage
from holdfast_worker.storage.base import Bytes, PlacedStore

LIST_PAGE: Final = 1000
"""Keys that one request lists, as Amazon S3 does. A lower value counts more requests than a long listing needs."""


class StoreMeter:
    """The requests of this process so far; threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._usage = StoreUsage()

    def add(self, more: StoreUsage) -> None:
        """Count requests or bytes."""
        with self._lock:
            self._usage += more

    def read(self) -> StoreUsage:
        """All of them so far."""
        with self._lock:
            return self._usage


class MeteredStore:
    """A store whose requests are counted."""

    def __init__(self, store: PlacedStore, meter: StoreMeter) -> None:
        self._store = store
        self._meter = meter
        self.max_concurrency = store.max_concurrency
        self.is_remote = store.is_remote
        self.place = store.place

    def put(self, key: str, data: Bytes) -> None:
        """See `Store`."""
        self._meter.add(StoreUsage(puts=1))
        self._store.put(key, data)
        self._meter.add(StoreUsage(uploaded_bytes=len(data)))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See `Store`."""
        self._meter.add(StoreUsage(puts=1))
        is_new = self._store.put_if_absent(key, data)
        self._meter.add(StoreUsage(uploaded_bytes=len(data)))
        return is_new

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """See `Store`. It reads the object first, if there is one."""
        self._meter.add(StoreUsage(gets=int(old is not None), puts=int(old is None)))
        is_replaced = self._store.swap(key, old, new)
        self._meter.add(
            StoreUsage(
                puts=int(old is not None and is_replaced),
                uploaded_bytes=len(new) * is_replaced,
                downloaded_bytes=len(old or b""),
            )
        )
        return is_replaced

    def get(self, key: str) -> bytes:
        """See `Store`."""
        self._meter.add(StoreUsage(gets=1))
        data = self._store.get(key)
        self._meter.add(StoreUsage(downloaded_bytes=len(data)))
        return data

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        """See `Store`."""
        self._meter.add(StoreUsage(gets=1))
        size = 0
        try:
            for chunk in self._store.stream(key, into):
                size += len(chunk)
                yield chunk
        finally:
            self._meter.add(StoreUsage(downloaded_bytes=size))

    def list(self, prefix: str) -> list[str]:
        """See `Store`."""
        self._meter.add(StoreUsage(lists=1))
        keys = self._store.list(prefix)
        self._meter.add(StoreUsage(lists=max(0, -(-len(keys) // LIST_PAGE) - 1)))
        return keys

    def delete(self, key: str) -> None:
        """See `Store`."""
        self._meter.add(StoreUsage(deletes=1))
        self._store.delete(key)
