"""Snapshots in the memory of nodes outlive the ranks, and the loss of a node.

A snapshot in memory is a checkpoint whose objects are in the memory of the nodes' wrappers instead of the store. Each rank copies its
shard to the next node of a ring and then to its own, so that the loss of one node leaves a copy of every shard:

    step-27-e2-9f31c2d40003/...     shards and their metadata, as in the store: on the next node, then on the own one
    copied/step-27-.../3            on node 0: rank 3 has made its first copy
    commits/...                     on node 0 and then on each node: every shard has its first copy, and ranks may replace their second one

A node has memory for two shards of each of its ranks. With several nodes, these are an own one and one of the node before it. The older of
each is freed before the newer one is written: first the copy on the next node, and the own one only after all first copies are there. So the
loss of a rank never finds less than one complete snapshot. While copies are replaced, the loss of a node does, and the store has to do. With
one node, both are own ones, and there is always a complete one.

No collectives run here; see `writer`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Final

from holdfast_worker.checkpoint.metadata import CorruptCheckpoint, ShardMetadata
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.schedule import REMEMBERED, retry_s
from holdfast_worker.checkpoint.snapshot import Snapshot
from holdfast_worker.checkpoint.staging import ConcurrentModification
from holdfast_worker.checkpoint.state_consistency import InconsistentState, ReplicasDiverged
from holdfast_worker.checkpoint.transfers import RateLimit
from holdfast_worker.clock import to_iso
from holdfast_worker.console import log_info
from holdfast_worker.node_memory.client import CopiesStore, HolderStore, NoRoom
from holdfast_worker.node_memory.wire import HolderAddress
from holdfast_worker.protocol.checkpoint_keys import COMMITS, DATA, CheckpointName
from holdfast_worker.protocol.policies import Cadence, CadenceUnit
from holdfast_worker.storage.base import StoreError

STALL_SHARE: Final = 0.01
"""Share of the time that snapshots may stall training with `auto`.
A higher value slows training; a lower value repeats more steps after a loss."""
COPY_SHARE: Final = 0.05
"""Share of the time that copies may take with `auto`.
A higher value disturbs training more, and a lost node finds copies incomplete more often; a lower value repeats more steps after a loss."""
MIN_INTERVAL_S: Final = 5.0
"""Shortest time between two snapshots with `auto`, also before the first.
A lower value spends processor time to save less than a restart takes; a higher value repeats more steps after a loss."""
COPY_TIMEOUT_S: Final = 300.0
"""Time for the copies of one snapshot. A higher value keeps the staging buffer from checkpoints; a lower value never
completes a large state over a slow network."""
POLL_S: Final = 0.05
"""How often a rank looks on its own node whether others are done. A higher value replaces copies later; a lower value adds requests."""
METADATA_BYTES: Final = 16 << 20
"""Memory to reserve for the metadata of a shard.
A lower value refuses shards of many tensors; a higher value refuses copies for which there is room."""
COMMIT_BYTES: Final = 2 << 20
"""Memory to reserve on node 0 for the part of two commits that describes the shard of one rank. As above."""
COPIED: Final = "copied/"


class MemorySchedule:
    """When the next snapshot in memory is due. Pure; only rank 0 uses it."""

    def __init__(self, cadence: Cadence) -> None:
        self._cadence = cadence
        self._stalls: list[float] = []
        self._copies: list[float] = []

    def observe(self, stall_s: float, copy_s: float) -> None:
        """Add how long a snapshot stalled training, and how long its copies took."""
        self._stalls = [*self._stalls, stall_s][-REMEMBERED:]
        self._copies = [*self._copies, copy_s][-REMEMBERED:]

    @property
    def interval_s(self) -> float:
        """The interval of `auto`."""
        if not self._stalls:
            return MIN_INTERVAL_S
        shares = (median(self._stalls) / STALL_SHARE, median(self._copies) / COPY_SHARE)
        return max(MIN_INTERVAL_S, *shares)

    def is_due(self, steps_since: int, seconds_since: float, failures: int) -> bool:
        """Whether a snapshot is due, given the last one and the consecutive failed ones."""
        if steps_since == 0 or (failures and seconds_since < retry_s(failures)):
            return False
        match self._cadence.unit:
            case CadenceUnit.STEPS:
                return steps_since >= self._cadence.amount
            case CadenceUnit.SECONDS:
                return seconds_since >= self._cadence.amount
            case CadenceUnit.AUTO:
                return seconds_since >= self.interval_s


class CopyCancelled(StoreError):
    """The copies of a snapshot are not needed any more."""


@dataclass(frozen=True, slots=True)
class SnapshotRing:
    """Where the shards of all ranks are copied to."""

    rank: int
    addresses: Sequence[HolderAddress]
    """The memory of each rank's node, by rank."""
    stores: Mapping[int, HolderStore] = field(init=False)
    """By node."""

    def __post_init__(self) -> None:
        """Connect nothing yet."""
        stores = {each.node: HolderStore(each, self.rank) for each in self.addresses}
        object.__setattr__(self, "stores", dict(sorted(stores.items())))

    def holders(self, rank: int) -> list[HolderStore]:
        """Where the shard of a rank is: on its own node and on the next one, if there is one."""
        nodes = [*self.stores]
        own = self.addresses[rank].node
        following = nodes[(nodes.index(own) + 1) % len(nodes)]
        return [self.stores[node] for node in dict.fromkeys((own, following))]


class MemorySnapshots:
    """Copies one rank's shards into memory, each snapshot in a thread."""

    def __init__(
        self,
        ring: SnapshotRing,
        cadence: Cadence,
        job: str = "",
        *,
        announce: Callable[[bool], None] = lambda _: None,
        deadline_s: float = COPY_TIMEOUT_S,
    ) -> None:
        """`job`: see `CheckpointRepository`.

        `announce` is called with whether the loss of a node leaves a copy of every shard, when that becomes known.
        """
        self._ring = ring
        self._job = job
        self._rank, self._world_size = ring.rank, len(ring.addresses)
        self._announce = announce
        self._deadline_s = deadline_s
        self._own, *following = ring.holders(self._rank)
        self._following = following[0] if following else None
        self._leader = ring.holders(0)[0]
        copies = [ring.holders(rank) for rank in range(self._world_size)]
        self.repository = CheckpointRepository(CopiesStore(copies, [self._own, self._leader]), job)
        """The snapshots, for reading."""
        self.schedule = MemorySchedule(cadence)
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._is_finished = True
        self._is_replacing = False
        """Whether the copy on the own node is being replaced."""
        self._kept: CheckpointName | None = None
        """The last complete snapshot of this start."""
        self.refusal = ""
        """Why there is no memory for copies; empty if there is."""

    @property
    def is_copying(self) -> bool:
        """Whether a snapshot is being copied on this rank."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def has_failed(self) -> bool:
        """Whether the last snapshot failed on this rank."""
        return not self.is_copying and not self._is_finished

    def save(self, name: CheckpointName, snapshot: Snapshot) -> None:
        """Begin to copy a snapshot."""
        assert not self.is_copying, "one snapshot at a time, as the step vote ensures"
        self._start(partial(self._save, name, snapshot))

    def adopt(self, name: CheckpointName) -> None:
        """Keep a snapshot of an earlier start, from which this one has continued.

        If a node was replaced, the copies that it had are made again.
        """
        self._kept = name
        if self._following:
            self._start(partial(self._repair, name, self._own, self._following))

    def cancel(self) -> None:
        """Give up the snapshot that is being copied, because another rank cannot copy its shard."""
        self._cancelled.set()

    def fail(self) -> None:
        """Count a snapshot as failed that this rank could not take."""
        self._is_finished = False

    def wait(self, within_s: float) -> None:
        """Wait up to `within_s` for the copy on the own node if it is being replaced.

        If a node is lost now, no other node has a copy of the shard of the rank before it.
        """
        if self._thread and self._is_replacing:
            self._thread.join(within_s)

    def discard(self) -> None:
        """Free what this rank has on all nodes, as there is too little memory."""
        for store in (self._own, self._following):
            if store:
                with suppress(StoreError):
                    self._free(store, set())

    def close(self) -> None:
        """End all copying, and wait for that."""
        self._announce(False)
        self._cancelled.set()
        for store in self._ring.stores.values():
            store.abort()
        if self._thread:
            self._thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        self._is_finished = False
        self._cancelled.clear()
        self._thread = threading.Thread(
            target=self._run, args=(work,), name="holdfast-copies", daemon=True
        )
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
            self._is_finished = True
        except NoRoom as error:
            self.refusal = str(error)
        except CopyCancelled:
            pass
        except (
            StoreError,
            CorruptCheckpoint,
            InconsistentState,
            ReplicasDiverged,
            ConcurrentModification,
            MemoryError,
        ) as error:
            log_info(f"rank {self._rank} has no copies of its newest snapshot in memory: {error}")

    def _save(self, name: CheckpointName, snapshot: Snapshot) -> None:
        began_s = time.monotonic()
        until_s = began_s + self._deadline_s
        snapshot.copying.wait()
        self._reserve(len(snapshot.memory))
        first = self._following or self._own
        self._free(first, {name} if self._following else {name, self._kept})
        self._copy(first, name, snapshot, until_s)
        self._leader.put(f"{COPIED}{name}/{self._rank}", b"")
        if self._rank == 0:
            self._commit(name, snapshot, until_s)
        self._wait_for(self._own, {name.commit_key}, until_s)
        self._kept = name
        self._is_replacing = True
        self._free(self._own, {name})
        if self._following:
            self._copy(self._own, name, snapshot, until_s)
            self._announce(True)
        self._is_replacing = False
        self.schedule.observe(snapshot.stall_s, time.monotonic() - began_s)

    def _repair(self, name: CheckpointName, *holders: HolderStore) -> None:
        """Have this rank's shard of a snapshot on all of these nodes, of which one has it."""
        shard = f"{name}/rank-{self._rank}"
        found = [
            {key for key in holder.list(shard) if key.startswith((f"{shard}.", f"{shard}/"))}
            for holder in holders
        ]
        sources = [index for index, keys in enumerate(found) if name.record_key(self._rank) in keys]
        if not sources or len(sources) == len(holders):
            return
        source, keys = holders[sources[0]], found[sources[0]]
        self._reserve(ShardMetadata.parse(source.get(name.record_key(self._rank))).stream.size)
        for index in {*range(len(holders))} - {*sources}:
            # The metadata last: it shows that the rest is there.
            for key in sorted(keys, key=lambda key: (key.endswith(".json"), key)):
                holders[index].put(key, source.get(key))

    def _reserve(self, size: int) -> None:
        """Reserve memory before any is used.

        Raises:
            NoRoom: there is too little.
        """
        shards = {self._own: 1 if self._following else 2}
        if self._following:
            shards[self._following] = 1
        commits = 0 if self._rank else COMMIT_BYTES * self._world_size
        for store in shards if self._rank else self._ring.stores.values():
            store.reserve(commits + shards.get(store, 0) * (size + METADATA_BYTES))

    def _copy(
        self, holder: HolderStore, name: CheckpointName, snapshot: Snapshot, until_s: float
    ) -> None:
        if self._cancelled.is_set():
            raise CopyCancelled
        CheckpointRepository(holder, self._job).upload(name, snapshot, until_s, RateLimit())

    def _free(self, holder: HolderStore, kept: set[CheckpointName | None]) -> None:
        """Delete this rank's shards on a node, except those of some snapshots."""
        keys = holder.list(DATA)
        ending = f"/rank-{self._rank}"
        prefixes = {
            key[: key.index("/")] for key in keys if f"{ending}." in key or f"{ending}/" in key
        }
        for prefix in prefixes - {str(name) for name in kept}:
            # The metadata first: without it, a shard is not read.
            holder.delete(f"{prefix}{ending}.json")
            holder.delete(f"{prefix}{ending}/")

    def _commit(self, name: CheckpointName, snapshot: Snapshot, until_s: float) -> None:
        """Make the snapshot exist, in place of the last one.

        It does once all ranks have made their first copies.
        """
        ranks = range(self._world_size)
        self._wait_for(self._leader, {f"{COPIED}{name}/{rank}" for rank in ranks}, until_s)
        records = [self.repository.find_record(name, rank, until_s) for rank in ranks]
        found = [record for record in records if record is not None]
        if len(found) < len(records):
            raise CorruptCheckpoint("a copy was lost before it was complete")
        CheckpointRepository(self._leader, self._job).commit(
            name, to_iso(snapshot.staged_at), found, until_s
        )
        commit = self._leader.get(name.commit_key)
        for store in self._ring.stores.values():
            if store is not self._leader:
                store.put(name.commit_key, commit)
            for key in {*store.list(COMMITS)} - {name.commit_key}:
                store.delete(key)
        self._leader.delete(COPIED)

    def _wait_for(self, holder: HolderStore, keys: set[str], until_s: float) -> None:
        """Wait until a node has these objects."""
        prefix = next(iter(keys)).partition("/")[0]
        while not keys <= {*holder.list(f"{prefix}/")}:
            if self._cancelled.wait(POLL_S):
                raise CopyCancelled
            if time.monotonic() > until_s:
                raise StoreError(f"other ranks were not done within {self._deadline_s:.0f} s")
