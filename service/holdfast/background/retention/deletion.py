"""The removal of what a plan names. It may be cut off anywhere: a commit goes before its data, so that what is left is a
leftover and no broken checkpoint; and what went is written down as soon as it has gone.
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

AT_ONCE: Final = 50
"""Checkpoints that go before the first of their data does, and are told of by one fact."""
KEYS_AT_ONCE: Final = 500
"""Objects that go between two looks at the time. More: the end of the service waits longer for us."""


@dataclass(frozen=True, slots=True)
class DeletionBudget:
    """For how long a removal may go on."""

    until_s: float
    """By the monotonic clock."""
    stopped: threading.Event
    """Set when the service ends."""

    @property
    def is_spent(self) -> bool:
        """Whether to leave the rest for another time."""
        return self.stopped.is_set() or time.monotonic() > self.until_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleter:
    """Removes from one job's store, and writes down what."""

    book: JobRetentionState
    depot: CheckpointBucket
    journal: Journal
    clock: Clock
    budget: DeletionBudget

    def carry_out(self, plan: RetentionPlan, stock: StoreInventory) -> bool:
        """Whether all that a plan names is gone, or the budget was spent before.

        Raises:
            DepotUnreachable: some of it may be gone; what is known to be is written down.
            DepotRefused: the same, and it would be so again.
        """
        for removal, names in (
            (Removal.SUPERSEDED, plan.superseded),
            (Removal.OFF_LINEAGE, plan.off_lineage),
        ):
            for some in _batches(names, AT_ONCE):
                if self.budget.is_spent:
                    return False
                self._uncommit(some, removal, stock)
                for name in some:
                    keys = [stored.key for stored in self.depot.look(name.data_prefix).objects]
                    if not self.clear(keys):
                        return False
        return all(self._discard(name, stock) for name in plan.uploads)

    def clear(self, keys: Sequence[str]) -> bool:
        """Whether these objects are gone, or the budget was spent before."""
        for some in _batches(keys, KEYS_AT_ONCE):
            if self.budget.is_spent:
                return False
            self.depot.delete(some)
        return True

    def note(self, sizes: Mapping[CheckpointName, int], removal: Removal) -> None:
        """Write down that checkpoints are gone, unless it is written already."""
        while True:
            # The job first: whatever is told after that makes the append fail, and is read the next time round.
            job = self.journal.read(self.book.job_id)
            self.book.catch_up(self.journal)
            is_told = self.book.saves.is_removed
            fresh = {name: size for name, size in sizes.items() if not is_told(str(name))}
            if not fresh:
                return
            fact = CheckpointsRemoved(
                at=self.clock.now(),
                checkpoints=tuple(map(str, fresh)),
                removal=removal,
                size_bytes=sum(fresh.values()),
            )
            with suppress(StaleWrite):  # A worker spoke meanwhile, or another replica.
                self.journal.append(job, [fact])

    def _uncommit(
        self, names: Sequence[CheckpointName], removal: Removal, stock: StoreInventory
    ) -> None:
        gone: dict[CheckpointName, int] = {}
        try:
            for name in names:
                self.depot.delete([name.commit_key])
                gone[name] = stock.sizes.get(name, 0)
        finally:
            self.note(gone, removal)

    def _discard(self, name: CheckpointName, stock: StoreInventory) -> bool:
        """Whether an upload is gone, or stays for a good reason; False if the budget was spent."""
        if self.budget.is_spent:
            return False
        if self.depot.has(name.commit_key):
            return True  # It is a checkpoint after all: a listing was late, or somebody very slow.
        parts = stock.data[name]
        is_through = self.clear([stored.key for stored in parts])
        if is_through:
            self.note({name: sum(stored.size_bytes for stored in parts)}, Removal.DEAD_UPLOAD)
        return is_through


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
