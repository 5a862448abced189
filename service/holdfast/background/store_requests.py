"""Requests of background tasks to checkpoint stores, and the regions of stores, for bills.

The requests of a visit are recorded when the store is opened for the next one, so that counting adds one small write to a visit.
A process that stops loses those of its last visits.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from typing import Final, Protocol, runtime_checkable

from holdfast_worker.protocol.store_usage import StoreUsage

from holdfast.domain.charges.charges import ENDPOINTS
from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable
from holdfast.ports import CheckpointBucket, Clock, OpenBucket, StoreListing
from holdfast.store.retention_queue import RetentionQueue

LIST_PAGE: Final = 1000
"""Objects that one request lists, as Amazon S3 does. A lower value counts more requests than a long listing needs."""


@runtime_checkable
class PlacedBucket(Protocol):
    """A bucket that can say where it is."""

    def place(self) -> str:
        """Cloud and region, or `own` for another server; empty if the store does not say.

        Raises:
            CheckpointStoreUnreachable: the store did not respond.
            CheckpointStoreRefused: it refuses to say.
        """
        ...


class MeteredBucket:
    """A bucket whose requests are counted."""

    def __init__(self, bucket: CheckpointBucket, counted: Counter[str]) -> None:
        self._bucket = bucket
        self._counted = counted

    def list_objects(self, directory: str) -> StoreListing:
        """See `CheckpointBucket`."""
        found = self._bucket.list_objects(directory)
        self._counted["lists"] += max(1, -(-len(found.objects) // LIST_PAGE))
        return found

    def list_directories(self, prefix: str) -> Sequence[str]:
        """See `CheckpointBucket`."""
        found = self._bucket.list_directories(prefix)
        self._counted["lists"] += max(1, -(-len(found) // LIST_PAGE))
        return found

    def has(self, key: str) -> bool:
        """See `CheckpointBucket`."""
        self._counted["gets"] += 1
        return self._bucket.has(key)

    def read(self, key: str) -> bytes | None:
        """See `CheckpointBucket`."""
        self._counted["gets"] += 1
        return self._bucket.read(key)

    def delete(self, keys: Sequence[str]) -> None:
        """See `CheckpointBucket`. Each object needs a request."""
        self._counted["deletes"] += len(keys)
        self._bucket.delete(keys)


class MeteredBuckets:
    """Opens buckets whose requests are counted by job."""

    def __init__(self, open_bucket: OpenBucket, queue: RetentionQueue, clock: Clock) -> None:
        self._open_bucket = open_bucket
        self._queue = queue
        self._clock = clock
        self._counted: dict[str, Counter[str]] = {}
        self._placed: set[str] = set()
        self._lock = threading.Lock()

    def open(self, store: str, job_id: str, envs: Mapping[str, str]) -> CheckpointBucket:
        """Open the bucket of a job, and record what was counted since it was last opened.

        Raises:
            CheckpointStoreRefused: the service cannot open this store.
            StoreUnavailable: the database is unavailable.
        """
        bucket = self._open_bucket(store, job_id, envs)
        counted = Counter[str]()
        with self._lock:
            before = self._counted.get(job_id)
            self._counted[job_id] = counted
        if before:
            today = self._clock.now().astimezone(UTC).date()
            self._queue.add_requests(job_id, StoreUsage(**before), today)
        if not any(envs.get(name) for name in ENDPOINTS):
            # A bucket of the same name at a server of the job's own says nothing about this one.
            self._find_place(store, bucket, counted)
        return MeteredBucket(bucket, counted)

    def _find_place(self, store: str, bucket: CheckpointBucket, counted: Counter[str]) -> None:
        """Ask a store once in the life of this process where it is, and remember it for bills."""
        if store in self._placed or not isinstance(bucket, PlacedBucket):
            return
        self._placed.add(store)
        counted["gets"] += 1
        with suppress(CheckpointStoreRefused, CheckpointStoreUnreachable):
            if place := bucket.place():
                self._queue.set_place(store, place)
