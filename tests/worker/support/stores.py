"""Stores for tests, and a minimal training to save in them: two ranks in one process."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from holdfast_worker.checkpoint.checksums import state_dict_digest
from holdfast_worker.checkpoint.collective import read_checkpoint
from holdfast_worker.checkpoint.host_memory import StagingBuffer
from holdfast_worker.checkpoint.metadata import CorruptCheckpoint
from holdfast_worker.checkpoint.read_plan import DestinationTensors
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import RestoreResult, restore
from holdfast_worker.checkpoint.save_plan import SavePlanner
from holdfast_worker.checkpoint.snapshot import Snapshot, stage
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.checkpoint.writer import AsyncWriter, WriterIdentity
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.tensor_layout import Owner
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.reports import Json, ReportKind
from holdfast_worker.storage.base import (
    Bytes,
    ObjectNotFound,
    Store,
    StoreRefused,
    StoreUnreachable,
    copy_chunks,
)
from holdfast_worker.storage.directory import DirectoryStore
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file
from torch import Tensor

RANKS = 2
LATER_S = float("inf")


class Crash(BaseException):
    """A simulated crash of the process, which no handler may catch."""


class CrashingStore:
    """A store whose client crashes before operation number `last` has an effect."""

    max_concurrency = 1
    is_remote = False

    def __init__(self, store: Store, last: int) -> None:
        self._store = store
        self._left = last
        self._lock = threading.Lock()

    def _live(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left < 0:
                raise Crash

    def put(self, key: str, data: Bytes) -> None:
        self._live()
        self._store.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._live()
        return self._store.put_if_absent(key, data)

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        self._live()
        return self._store.swap(key, old, new)

    def get(self, key: str) -> bytes:
        self._live()
        return self._store.get(key)

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        self._live()
        return self._store.stream(key, into)

    def list(self, prefix: str) -> list[str]:
        self._live()
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._live()
        self._store.delete(key)


class MemoryStore:
    """A store in memory."""

    max_concurrency = 1
    is_remote = False

    def __init__(self, objects: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self.objects = dict(objects)

    def put(self, key: str, data: Bytes) -> None:
        self.objects[key] = bytes(data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) is data

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        if self.objects.get(key) != old:
            return False
        self.objects[key] = new
        return True

    def get(self, key: str) -> bytes:
        return b"".join(self.stream(key))

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        if key not in self.objects:
            raise ObjectNotFound(key)
        yield from copy_chunks([memoryview(self.objects[key])], into, 1 << 20)

    def list(self, prefix: str) -> list[str]:
        return [key for key in self.objects if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


class FlakyStore(DirectoryStore):
    """A store with failing first puts (`silences`), refused key suffixes and lost responses."""

    def __init__(
        self, root: Path, silences: int = 0, refused: str = "\0", loses_answers: bool = False
    ) -> None:
        super().__init__(root)
        self._silences = silences
        self._refused = refused
        self._loses_answers = loses_answers

    def put(self, key: str, data: Bytes) -> None:
        if key.endswith(self._refused):
            raise StoreRefused(f"no room for {key}")
        self._silences -= 1
        if self._silences >= 0:
            raise StoreUnreachable("come back later")
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        is_new = super().put_if_absent(key, data)
        if self._loses_answers:
            self._loses_answers = False
            raise StoreUnreachable("the answer was lost")
        return is_new


class Scales:
    """A tracked object: a few tensors whose values state their step, and a number."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def at(self, step: int) -> Scales:
        self.state = {
            "left": torch.full((300,), float(step)),
            "right": torch.full((20, 10), float(step)),
            "step": step,
        }
        return self

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state

    @property
    def digest(self) -> str:
        return state_dict_digest({k: v for k, v in self.state.items() if isinstance(v, Tensor)})


class Fresh:
    """Initial state of a script: tensors that a restore fills."""

    def __init__(self, **more: Tensor) -> None:
        self.tensors = {"left": torch.zeros(300), "right": torch.zeros(20, 10), **more}
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {**self.tensors, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        for name, tensor in self.tensors.items():
            tensor.copy_(state.get(name, tensor))


class RankGroup:
    """Checkpoint writers of all ranks of one start of a job, over one store."""

    def __init__(
        self, store: Store, spool: Path, *, epoch: int = 1, ranks: int = RANKS, **rules: Any
    ) -> None:
        self.spool = spool_file(spool, epoch)
        reports = Reporter(Spool(spool, epoch))
        nonce = f"{epoch:08x}"
        rules = {"keep": 3, **rules}
        self.archive = CheckpointRepository(store)
        self.savers = [
            AsyncWriter(
                self.archive,
                WriterIdentity(rank, ranks, epoch, nonce),
                reports if rank == 0 else Reporter(None),
                **rules,
            )
            for rank in range(ranks)
        ]

    def save(self, step: int, scales: Scales | None = None) -> None:
        """Save one checkpoint of all ranks and wait for its success or failure."""
        for rank, writer in enumerate(self.savers):
            writer.save(snapshot(step, rank, len(self.savers), scales))
        for writer in self.savers:
            writer.wait(30)
            assert not writer.is_busy

    def report_bodies(self, kind: ReportKind) -> list[dict[str, Json]]:
        """Bodies of the reports of a kind."""
        return [dict(r.body) for r, _ in read_spool(self.spool) if r.kind is kind]


def snapshot(step: int, rank: int, ranks: int, scales: Scales | None = None) -> Snapshot:
    """A rank's share of the state at a step; all tensors are replicated, so that each has some."""
    tracked = Replicated({"model": (scales or Scales()).at(step)})
    own = {"rank": rank, "noise": torch.tensor([rank, step])}
    return stage(step, SavePlanner(tracked, alone(rank, ranks)), own, StagingBuffer())


def alone(rank: int, ranks: int) -> ProcessGroup:
    """The process group of a rank that does not communicate with the others."""
    return ProcessGroup(rank, ranks, torch.device("cpu"), None)


class Replicated(TrackedState):
    """Tracked objects with replicated tensors only."""

    def owner_of(self, name: str) -> Callable[[str], Owner]:
        return lambda _: Owner.REPLICATED


def newest(store: Store, ranks: int = RANKS) -> tuple[int, list[str]]:
    """Step of the newest checkpoint that all ranks can use (0: none), and flaws of newer ones."""
    archive = CheckpointRepository(store)
    passed_over: list[str] = []
    for name in archive.names(LATER_S):
        try:
            check_whole(archive, name, ranks)
        except CorruptCheckpoint as damage:
            passed_over.append(str(damage))
        else:
            return name.step, passed_over
    return 0, passed_over


def flaws(store: Store) -> list[str]:
    """Flaws of all checkpoints."""
    archive = CheckpointRepository(store)
    found: list[str] = []
    for name in archive.names(LATER_S):
        try:
            check_whole(archive, name, RANKS)
        except CorruptCheckpoint as damage:
            found.append(f"{name}: {damage}")
    return found


def check_whole(archive: CheckpointRepository, name: CheckpointName, ranks: int) -> None:
    """Read a checkpoint on every rank and check that all of it is of one step.

    Raises:
        Damaged: The checkpoint cannot be used.
    """
    archive.is_remote = False  # Ranks that do not communicate cannot share reads.
    for rank in range(ranks):
        found = read_checkpoint(
            archive, alone(rank, ranks), DestinationTensors.empty(), name, LATER_S
        )
        state = found.tracked["model"]
        values = {*state["left"].tolist(), *state["right"].ravel().tolist(), float(state["step"])}
        assert values == {float(name.step)}
        for writer, own in found.owns.items():
            assert own["rank"] == writer
            assert own["noise"].tolist() == [writer, name.step]


def garble(store: MemoryStore, key: str) -> None:
    """Overwrite an object with different bytes of the same size."""
    store.objects[key] = bytes(len(store.objects[key]))


class InterruptedStore:
    """A store that runs a callback before the first operation of a kind on a key prefix."""

    max_concurrency = 1
    is_remote = False

    def __init__(
        self, store: Store, operation: str, prefix: str, meanwhile: Callable[[], object]
    ) -> None:
        self._store = store
        self._cue = (operation, prefix)
        self._meanwhile: Callable[[], object] | None = meanwhile

    def put(self, key: str, data: Bytes) -> None:
        self._listen("put", key)
        self._store.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._listen("put_if_absent", key)
        return self._store.put_if_absent(key, data)

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        self._listen("swap", key)
        return self._store.swap(key, old, new)

    def get(self, key: str) -> bytes:
        self._listen("get", key)
        return self._store.get(key)

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        self._listen("stream", key)
        return self._store.stream(key, into)

    def list(self, prefix: str) -> list[str]:
        self._listen("list", prefix)
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._listen("delete", key)
        self._store.delete(key)

    def _listen(self, operation: str, key: str) -> None:
        meanwhile = self._meanwhile
        if meanwhile and operation == self._cue[0] and key.startswith(self._cue[1]):
            self._meanwhile = None
            meanwhile()


def resume(store: Store, epoch: int | None = None) -> RestoreResult:
    """Start a new attempt of one rank: claim an epoch, restore, and record the start."""
    archive = CheckpointRepository(store)
    if epoch is None:
        epoch = archive.tokens.acquire_next(f"{secrets.token_hex(4)}", LATER_S)
    else:
        archive.tokens.claim(epoch, f"{epoch:08x}", LATER_S)
    return restore(archive, alone(0, 1), Replicated({"model": Scales()}), epoch, LATER_S)
