"""Memory of nodes on this machine, and the ranks that put their snapshots there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from holdfast_worker.checkpoint.memory_snapshots import MemorySnapshots, SnapshotRing
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import RestoreResult, restore
from holdfast_worker.checkpoint.snapshot import Snapshot
from holdfast_worker.node_memory.holder import MemoryHolder
from holdfast_worker.node_memory.room import Room
from holdfast_worker.node_memory.wire import HolderAddress
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.policies import Cadence
from holdfast_worker.storage.base import Store
from worker.support.generated_models import ThreadGroup, ThreadRendezvous
from worker.support.stores import LATER_S, Fresh, Replicated, snapshot

ROOMY = Room(total_bytes=10**12, free_bytes=10**12)
CADENCE = Cadence.parse("auto")


class MemoryNodes:
    """Nodes with one rank each; `start` is what a start of all ranks does."""

    def __init__(self, holders: Sequence[MemoryHolder]) -> None:
        self.holders = [*holders]
        self.ranks: list[MemorySnapshots] = []
        self.addresses: list[HolderAddress] = []
        self.start()

    @classmethod
    @contextmanager
    def opened(cls, count: int, room: Callable[[], Room] = lambda: ROOMY) -> Iterator[MemoryNodes]:
        with ExitStack() as closing:
            holders = [MemoryHolder(node, "127.0.0.1", room) for node in range(count)]
            for holder in holders:
                closing.enter_context(holder.opened())
            nodes = cls(holders)
            closing.callback(nodes.close)
            yield nodes

    def start(self) -> None:
        """Start all ranks again."""
        self.close()
        self.addresses = [holder.renew("127.0.0.1") for holder in self.holders]
        self.ranks = [
            MemorySnapshots(SnapshotRing(rank, self.addresses), CADENCE)
            for rank in range(len(self.holders))
        ]

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()

    def lose(self, node: int) -> None:
        """Have an empty node in the place of one."""
        self.holders[node]._objects.clear()

    def begin(self, step: int, epoch: int = 1, only: Sequence[int] | None = None) -> None:
        """Begin to copy a snapshot of some ranks, by default of all."""
        name = CheckpointName(step, epoch, f"{step:012x}")
        for rank in range(len(self.ranks)) if only is None else only:
            self.ranks[rank].save(name, self.snapshot(step, rank))

    def save(self, step: int, epoch: int = 1) -> None:
        """Copy a snapshot of all ranks."""
        self.begin(step, epoch)
        self.join()

    def join(self) -> None:
        for rank in self.ranks:
            if rank._thread:
                rank._thread.join(30)
                assert not rank.is_copying

    def snapshot(self, step: int, rank: int) -> Snapshot:
        return snapshot(step, rank, len(self.ranks))

    def keys(self, node: int) -> list[str]:
        """Which complete shards a node holds, by step and rank."""
        records = [key for key in self.holders[node]._objects if key.startswith("step-")]
        words = [key.removesuffix(".json").split("/") for key in records if key.endswith(".json")]
        return sorted(f"{name.split('-')[1]} {rank}" for name, rank in words)

    def restore(self, store: Store, epoch: int = 2) -> list[RestoreResult]:
        """Restore all ranks after a new start."""
        count = len(self.ranks)
        rendezvous = ThreadRendezvous(count)

        def one(rank: int) -> RestoreResult:
            return restore(
                CheckpointRepository(store),
                ThreadGroup(rank, count, rendezvous),
                Replicated({"model": Fresh()}),
                epoch,
                LATER_S,
                memory=self.ranks[rank].repository,
            )

        with ThreadPoolExecutor(count) as pool:
            return [*pool.map(one, range(count))]
