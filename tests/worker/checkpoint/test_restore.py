"""A restore reads into the existing tensors, and never trains on partly damaged state."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from holdfast_worker.checkpoint.metadata import PartialLoadError
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import RestoreResult, restore
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.cli.checkpoints import list_checkpoints, verify
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.storage.base import ObjectUnreadable, StoreError, StoreRefused
from holdfast_worker.storage.directory import DirectoryStore
from torch import Tensor
from worker.support.generated_models import StatefulObject, ThreadGroup, ThreadRendezvous, save
from worker.support.run_driver import DDP_SCRIPT, RunDriver
from worker.support.stores import (
    LATER_S,
    Fresh,
    MemoryStore,
    RankGroup,
    Replicated,
    Scales,
    alone,
    garble,
)


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    """Two checkpoints of two ranks."""
    store = MemoryStore()
    group = RankGroup(store, tmp_path)
    group.save(10)
    group.save(20)
    return store


class Counting(MemoryStore):
    """A store that counts reads of parts."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self.objects = store.objects
        self.read: list[str] = []

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        self.read.append(key)
        return super().stream(key, into)


class CorruptingStore(MemoryStore):
    """A store that corrupts one part on its first read, like a faulty link."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        super().__init__()
        self.objects = store.objects
        self._key: str | None = key

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        for stretch in super().stream(key, into):
            if key == self._key:
                self._key = None
                yield memoryview(bytes(len(stretch)))
            else:
                yield stretch


class RefusingStore(MemoryStore):
    """A store that fails reads of keys with a prefix in `begins` that contain `what`."""

    def __init__(self, store: MemoryStore, error: StoreError, *begins: str, what: str) -> None:
        super().__init__()
        self.objects = store.objects
        self._error, self._begins, self._what = error, begins, what

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        if key.startswith(self._begins) and self._what in key:
            raise self._error
        return super().stream(key, into)


def start(store: MemoryStore, fresh: Fresh) -> RestoreResult:
    """Start an attempt of one rank without retries of unreadable objects."""
    archive = CheckpointRepository(store)
    epoch = archive.tokens.acquire_next("0a", LATER_S)
    tracked = Replicated({"model": fresh})
    return restore(archive, alone(0, 1), tracked, epoch, time.monotonic())


def names(store: MemoryStore) -> list[CheckpointName]:
    return CheckpointRepository(store).names(LATER_S)


def test_existing_tensors_are_filled_in_place(store: MemoryStore) -> None:
    fresh = Fresh()
    places = {name: tensor.data_ptr() for name, tensor in fresh.tensors.items()}

    restored = start(store, fresh)

    assert restored.name == names(store)[0]
    assert {name: tensor.data_ptr() for name, tensor in fresh.tensors.items()} == places
    assert all((tensor == 20).all() for tensor in fresh.tensors.values())


@pytest.mark.parametrize("rank", [0, 1])
def test_older_checkpoint_replaces_one_damaged_midway(store: MemoryStore, rank: int) -> None:
    newest, older = names(store)
    garble(store, newest.part_key(rank, 0))
    fresh = Fresh()

    restored = start(store, fresh)

    assert restored.name == older
    assert [over.checkpoint for over in restored.passed_over] == [str(newest)]
    assert all((tensor == 10).all() for tensor in fresh.tensors.values())


def test_checkpoint_passed_over_is_logged_with_the_reason(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by later starts, which read the quarantine mark."""
    newest, _ = names(store)
    garble(store, newest.part_key(1, 0))
    line = (
        f"skipping checkpoint {newest}: "
        f"the digest of {newest.part_key(1, 0)} differs from the committed one"
    )
    capsys.readouterr()

    start(store, Fresh())
    first = capsys.readouterr().err
    start(store, Fresh())
    second = capsys.readouterr().err

    assert (first.count(line), second.count(line)) == (1, 1)


@pytest.mark.parametrize(
    ("error", "message"),
    [(ObjectUnreadable("Input/output error"), "Input/output error"), (StoreRefused("403"), "403")],
)
@pytest.mark.parametrize("what", ["commits/", "rank-0.json", "rank-1/"])
def test_older_checkpoint_replaces_one_that_cannot_be_read(
    store: MemoryStore, what: str, error: StoreError, message: str
) -> None:
    newest, older = names(store)
    fresh = Fresh()

    restored = start(RefusingStore(store, error, str(newest), newest.commit_key, what=what), fresh)

    assert restored.name == older
    [over] = restored.passed_over
    assert over.checkpoint == str(newest)
    assert message in over.reason
    assert all((tensor == 10).all() for tensor in fresh.tensors.values())
    assert store.list("flawed/") == []


@pytest.mark.parametrize("what", ["commits/", "rank-0.json", "rank-1/"])
def test_run_ends_if_no_checkpoint_can_be_read(store: MemoryStore, what: str) -> None:
    """It must not restart at step 0 because of a failing store."""
    before = dict(store.objects)
    refusing_store = RefusingStore(store, ObjectUnreadable("Input/output error"), "", what=what)

    with pytest.raises(StoreError, match="Input/output error"):
        start(refusing_store, Fresh())
    again = start(store, Fresh())

    assert (
        not store.objects.keys()
        - before.keys()
        - set(store.list("starts/") + store.list("claims/"))
    )
    assert again.name == names(store)[0]


def test_file_with_a_medium_error_is_unreadable(tmp_path: Path) -> None:
    directory = DirectoryStore(tmp_path)
    (tmp_path / "bad").symlink_to("/proc/self/mem")  # Nothing is mapped at its first byte.

    with pytest.raises(ObjectUnreadable, match=r"Input/output error: .*/bad"):
        directory.get("bad")


def test_damaged_checkpoint_is_not_read_again(store: MemoryStore) -> None:
    newest, older = names(store)
    garble(store, newest.part_key(1, 0))
    start(store, Fresh())
    again = Counting(store)

    restored = start(again, Fresh())

    assert restored.name == older
    assert [over.checkpoint for over in restored.passed_over] == [str(newest)]
    assert not [key for key in again.read if key.startswith(str(newest))]


def test_next_start_is_at_step_0_if_all_checkpoints_are_damaged(
    store: MemoryStore,
) -> None:
    for name in names(store):
        garble(store, name.part_key(1, 0))

    with pytest.raises(PartialLoadError, match="start again"):
        start(store, Fresh())
    fresh = Fresh()
    restored = start(store, fresh)

    assert restored.name is None
    assert len(restored.passed_over) == 2
    assert not any(tensor.any() for tensor in fresh.tensors.values())


def test_incomplete_older_checkpoint_is_not_mixed_in(store: MemoryStore, tmp_path: Path) -> None:
    """The newest checkpoint has one more tensor, whose values must not remain."""

    class Wider(Scales):
        def at(self, step: int) -> Scales:
            super().at(step)
            self.state["more"] = torch.full((50,), float(step))
            return self

    group = RankGroup(store, tmp_path / "wider", epoch=2)
    group.save(30, Wider())
    garble(store, names(store)[0].part_key(0, 0))
    fresh = Fresh(more=torch.zeros(50))

    with pytest.raises(PartialLoadError):
        start(store, fresh)
    restored = start(store, next_start := Fresh(more=torch.zeros(50)))

    assert restored.name
    assert restored.name.step == 20
    assert not next_start.tensors["more"].any()


def test_empty_tensors_are_saved_and_restored(tmp_path: Path) -> None:
    class WithEmptyTensors(Scales):
        def at(self, step: int) -> Scales:
            super().at(step)
            self.state |= {"none": torch.empty(0), "rows": torch.empty(0, 4, dtype=torch.int8)}
            return self

    store = MemoryStore()
    RankGroup(store, tmp_path).save(30, WithEmptyTensors())
    resumed = Scales()
    archive = CheckpointRepository(store)
    archive.tokens.claim(2, "0a", LATER_S)

    restored = restore(archive, alone(0, 1), Replicated({"model": resumed}), 2, LATER_S)

    assert restored.name
    assert restored.name.step == 30
    assert resumed.state["none"].shape == (0,)
    assert resumed.state["rows"].shape == (0, 4)
    assert resumed.state["rows"].dtype == torch.int8


def test_views_and_plain_dtypes_are_restored_in_place(tmp_path: Path) -> None:
    class Viewed(Scales):
        def at(self, step: int) -> Scales:
            whole = torch.full((3,), complex(step, step))
            self.state = {
                "conjugate": whole.conj(),
                "negative": whole.conj().imag,
                "double": torch.full((2,), complex(step, 1), dtype=torch.complex128),
                "unsigned": torch.full((2,), step, dtype=torch.uint16),
                "step": step,
            }
            return self

        def load_state_dict(self, state: dict[str, Any]) -> None:
            for name in ("conjugate", "negative", "double", "unsigned"):
                self.state[name].copy_(state[name])

    store = MemoryStore()
    RankGroup(store, tmp_path).save(30, Viewed())
    resumed = Viewed().at(1)
    archive = CheckpointRepository(store)
    archive.tokens.claim(2, "0a", LATER_S)

    restored = restore(archive, alone(0, 1), Replicated({"model": resumed}), 2, LATER_S)

    assert restored.name
    assert resumed.state["conjugate"].tolist() == [30 - 30j] * 3
    assert resumed.state["negative"].tolist() == [-30.0] * 3
    assert resumed.state["double"].tolist() == [30 + 1j] * 2
    assert resumed.state["unsigned"].tolist() == [30] * 2


def test_state_of_empty_tensors_alone_is_saved(tmp_path: Path) -> None:
    class Nothing(Scales):
        def at(self, step: int) -> Scales:
            self.state = {"none": torch.empty(0)}
            return self

    store = MemoryStore()
    RankGroup(store, tmp_path).save(30, Nothing())

    assert [name.step for name in names(store)] == [30]
    assert verify(CheckpointRepository(store), names(store)[0]) is None


def test_part_corrupted_in_transit_is_read_again(store: MemoryStore) -> None:
    newest, _ = names(store)
    fresh = Fresh()

    restored = start(CorruptingStore(store, newest.part_key(0, 0)), fresh)

    assert restored.name == newest
    assert restored.passed_over == []
    assert all((tensor == 20).all() for tensor in fresh.tensors.values())


@pytest.mark.parametrize(
    "hurt",
    [
        lambda store, name: store.delete(name.commit_key),
        lambda store, name: store.put(name.commit_key, b"{}"),
        lambda store, name: store.delete(name.record_key(0)),
    ],
)
def test_damage_found_before_reading_changes_no_state(
    store: MemoryStore, hurt: Callable[[MemoryStore, CheckpointName], None]
) -> None:
    for name in names(store):
        hurt(store, name)
    store.delete("newest.json")
    fresh = Fresh()

    restored = start(store, fresh)

    assert restored.name is None
    assert not any(tensor.any() for tensor in fresh.tensors.values())
    assert not store.list("flawed/")


def test_repaired_checkpoint_is_used_again(store: MemoryStore) -> None:
    newest, _ = names(store)
    key = newest.part_key(1, 0)
    sound = store.objects[key]
    garble(store, key)
    start(store, Fresh())
    archive = CheckpointRepository(store)
    assert "digest" in str(list_checkpoints(archive)[0].flaw)
    assert verify(archive, newest)

    store.objects[key] = sound

    assert verify(archive, newest) is None
    assert start(store, Fresh()).name == newest


def test_ranks_finding_all_damaged_exit_and_restart_at_step_0(
    tmp_path: Path, undisturbed: RunDriver
) -> None:
    driver = RunDriver(tmp_path, attempt=undisturbed.attempt)
    shutil.copytree(undisturbed.path / "store", tmp_path / "store")
    saved = len(list((tmp_path / "store" / "lesson" / "commits").iterdir()))
    for part in (tmp_path / "store" / "lesson").glob("step-*/rank-1/*"):
        part.write_bytes(bytes(part.stat().st_size))

    damaged = driver.run_ranks(2, DDP_SCRIPT, "40")
    next_start = driver.run_ranks(2, DDP_SCRIPT, "40")

    [left, _] = driver.reports(ReportKind.WORKER_LEFT)
    [started] = driver.reports(ReportKind.TRAINING_STARTED)
    assert damaged == [Exit.FAILED, Exit.FAILED]
    assert "start again" in str(left.body["detail"])
    assert next_start == [0, 0]
    assert started.body["restored_from"] is None
    assert len(started.body["passed_over"]) == saved  # type: ignore[arg-type]
    assert driver.result == undisturbed.result


def outcomes(
    saves: Callable[[int], list[dict[str, Tensor]]], fresh: dict[str, Tensor]
) -> list[str]:
    """Outcome of two ranks with `fresh` state after `saves`, of which the last is damaged."""
    store, rendezvous = MemoryStore(), ThreadRendezvous(2)

    def run_rank(rank: int) -> str:
        ranks, archive = ThreadGroup(rank, 2, rendezvous), CheckpointRepository(store)
        for step, own in enumerate(saves(rank)):
            saved = {
                "model": StatefulObject({"w": torch.ones(300)}),
                "own": StatefulObject(dict(own)),
            }
            save(TrackedState(saved, per_rank=["own"]), ranks, archive, step)
            ranks.all_reduce_max([0.0])
        if rank == 0:
            garble(store, archive.names(LATER_S)[0].part_key(1, 0))
        ranks.all_reduce_max([0.0])
        own = {name: tensor.clone() for name, tensor in fresh.items()}
        begun = TrackedState(
            {"model": StatefulObject({}), "own": StatefulObject(own)}, per_rank=["own"]
        )
        try:
            restore(archive, ranks, begun, 2, time.monotonic())
        except PartialLoadError as error:
            return str(error)
        return "begins"

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run_rank, range(2)))


def test_ranks_agree_on_state_overwritten_by_damage() -> None:
    """Rank 0 reads into the tensor that it saved; rank 1 starts with a different one."""
    first, second = outcomes(lambda rank: [{"h": torch.ones(5 + rank)}], {"h": torch.zeros(5)})

    assert "the state was partly overwritten" in first
    assert first == second


def test_ranks_agree_on_replacing_overwritten_state() -> None:
    """The older checkpoint has only the tensor of rank 0."""
    whole = {"h": torch.ones(5)}

    first, second = outcomes(lambda rank: [{} if rank else whole, whole], {"h": torch.zeros(5)})

    assert "the state was partly overwritten" in first
    assert first == second
