"""Deletes the checkpoints that a plan lists.

A commit is deleted before its data, so an interruption leaves superfluous data rather than a broken checkpoint.
Deletions are recorded as soon as they are made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from holdfast_worker.protocol.checkpoint_keys import CheckpointName

from holdfast.background.retention.inventory import JobRetentionState, StoreInventory
from holdfast.domain.checkpoints.retention import RetentionPlan
from holdfast.domain.events import CheckpointsRemoved, Removal
from holdfast.errors import StaleWrite
from holdfast.ports import CheckpointBucket, Clock
from holdfast.store.journal import Journal

T = TypeVar("T")

BATCH_SIZE: Final = 50
"""Checkpoints whose commits are deleted before the first of their data, recorded by one
event."""
KEYS_PER_BATCH: Final = 500
"""Objects deleted between two checks of the deadline. A higher value delays the end of the
service."""


@dataclass(frozen=True, slots=True)
class DeletionBudget:
    """Time limit of a deletion run."""

    until_s: float
    """Deadline by the monotonic clock."""
    stopped: threading.Event
    """Set when the service ends."""

    @property
    def is_spent(self) -> bool:
        """Whether to leave the rest for another run."""
        return self.stopped.is_set() or time.monotonic() > self.until_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleter:
    """Deletes objects from one job's store and records the deletions."""

    state: JobRetentionState
    bucket: CheckpointBucket
    journal: Journal
    clock: Clock
    budget: DeletionBudget

    def execute(self, plan: RetentionPlan, inventory: StoreInventory) -> bool:
        """Whether everything in a plan was deleted before the time limit.

        Raises:
            CheckpointStoreUnreachable: some of it may be deleted; known deletions are recorded.
            CheckpointStoreRefused: some of it may be deleted, and a retry would fail.
        """
        for removal, names in (
            (Removal.SUPERSEDED, plan.superseded),
            (Removal.OFF_LINEAGE, plan.off_lineage),
        ):
            for some in _batches(names, BATCH_SIZE):
                if self.budget.is_spent:
                    return False
                self._delete_commits(some, removal, inventory)
                for name in some:
                    keys = [
                        stored.key for stored in self.bucket.list_objects(name.data_prefix).objects
                    ]
                    if not self.delete_objects(keys):
                        return False
        return all(self._delete_upload(name, inventory) for name in plan.uploads)

    def delete_objects(self, keys: Sequence[str]) -> bool:
        """Whether these objects were deleted before the time limit."""
        for some in _batches(keys, KEYS_PER_BATCH):
            if self.budget.is_spent:
                return False
            self.bucket.delete(some)
        return True

    def record_removal(self, sizes: Mapping[CheckpointName, int], removal: Removal) -> None:
        """Record that checkpoints are deleted, unless this is recorded already."""
        while True:
            # Read the job first: a later event makes the append fail, and the next round reads it.
            job = self.journal.read(self.state.job_id)
            self.state.catch_up(self.journal)
            is_recorded = self.state.history.is_removed
            fresh = {name: size for name, size in sizes.items() if not is_recorded(str(name))}
            if not fresh:
                return
            event = CheckpointsRemoved(
                at=self.clock.now(),
                checkpoints=tuple(map(str, fresh)),
                removal=removal,
                size_bytes=sum(fresh.values()),
            )
            with suppress(StaleWrite):  # A worker or another replica wrote in the meantime.
                self.journal.append(job, [event])

    def _delete_commits(
        self, names: Sequence[CheckpointName], removal: Removal, inventory: StoreInventory
    ) -> None:
        deleted: dict[CheckpointName, int] = {}
        try:
            for name in names:
                self.bucket.delete([name.commit_key])
                deleted[name] = inventory.sizes.get(name, 0)
        finally:
            self.record_removal(deleted, removal)

    def _delete_upload(self, name: CheckpointName, inventory: StoreInventory) -> bool:
        """Whether an upload is deleted, or stays for a good reason; False at the time limit."""
        if self.budget.is_spent:
            return False
        if self.bucket.has(name.commit_key):
            return (
                True  # The checkpoint was committed: a listing was stale, or its worker very slow.
            )
        parts = inventory.data[name]
        is_deleted = self.delete_objects([stored.key for stored in parts])
        if is_deleted:
            self.record_removal(
                {name: sum(stored.size_bytes for stored in parts)}, Removal.DEAD_UPLOAD
            )
        return is_deleted


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
