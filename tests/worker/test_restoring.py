"""A checkpoint is read straight to where its tensors belong, and what proves damaged midway is never trained on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from holdfast_worker.archive import Archive
from holdfast_worker.checkpoint import Spoilt
from holdfast_worker.inspection import list_checkpoints, verify
from holdfast_worker.names import Name
from holdfast_worker.restoring import Restored, restore
from holdfast_worker.wire import Exit, ReportKind

from worker.shelves import LATER_S, Crew, Fresh, MemoryStore, Replicated, Scales, alone, garble
from worker.stage import LESSON, Stage


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    """Two checkpoints of two ranks."""
    store = MemoryStore()
    crew = Crew(store, tmp_path)
    crew.save(10)
    crew.save(20)
    return store


class Counting(MemoryStore):
    """Counts what is read of the parts."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self.objects = store.objects
        self.read: list[str] = []

    def stream(self, key: str) -> Iterator[memoryview]:
        self.read.append(key)
        return super().stream(key)


class Unsteady(MemoryStore):
    """Garbles one part the first time it is read, as a link may do."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        super().__init__()
        self.objects = store.objects
        self._key: str | None = key

    def stream(self, key: str) -> Iterator[memoryview]:
        for stretch in super().stream(key):
            if key == self._key:
                self._key = None
                yield memoryview(bytes(len(stretch)))
            else:
                yield stretch


def start(store: MemoryStore, fresh: Fresh) -> Restored:
    archive = Archive(store)
    epoch = archive.claims.take_next("0a", LATER_S)
    return restore(archive, alone(0, 1), Replicated({"model": fresh}), epoch, LATER_S)


def names(store: MemoryStore) -> list[Name]:
    return Archive(store).names(LATER_S)


def test_tensors_that_are_there_are_filled_where_they_are(store: MemoryStore) -> None:
    fresh = Fresh()
    places = {name: tensor.data_ptr() for name, tensor in fresh.tensors.items()}

    restored = start(store, fresh)

    assert restored.name == names(store)[0]
    assert {name: tensor.data_ptr() for name, tensor in fresh.tensors.items()} == places
    assert all((tensor == 20).all() for tensor in fresh.tensors.values())


@pytest.mark.parametrize("rank", [0, 1])
def test_an_older_checkpoint_takes_the_place_of_one_that_proved_damaged_midway(
    store: MemoryStore, rank: int
) -> None:
    newest, older = names(store)
    garble(store, newest.part_key(rank, 0))
    fresh = Fresh()

    restored = start(store, fresh)

    assert restored.name == older
    assert [over.checkpoint for over in restored.passed_over] == [str(newest)]
    assert all((tensor == 10).all() for tensor in fresh.tensors.values())


def test_what_proved_damaged_is_not_read_again(store: MemoryStore) -> None:
    newest, older = names(store)
    garble(store, newest.part_key(1, 0))
    start(store, Fresh())
    again = Counting(store)

    restored = start(again, Fresh())

    assert restored.name == older
    assert [over.checkpoint for over in restored.passed_over] == [str(newest)]
    assert not [key for key in again.read if key.startswith(str(newest))]


def test_without_another_checkpoint_the_next_start_begins_at_the_beginning(
    store: MemoryStore,
) -> None:
    for name in names(store):
        garble(store, name.part_key(1, 0))

    with pytest.raises(Spoilt, match="start again"):
        start(store, Fresh())
    fresh = Fresh()
    restored = start(store, fresh)

    assert restored.name is None
    assert len(restored.passed_over) == 2
    assert not any(tensor.any() for tensor in fresh.tensors.values())


def test_a_state_of_which_the_older_one_has_not_everything_is_not_patched_together(
    store: MemoryStore, tmp_path: Path
) -> None:
    """The newest checkpoint has a tensor more. Its values must not stay where those of the older one belong."""

    class Wider(Scales):
        def at(self, step: int) -> Scales:
            super().at(step)
            self.state["more"] = torch.full((50,), float(step))
            return self

    crew = Crew(store, tmp_path / "wider", epoch=2)
    crew.save(30, Wider())
    garble(store, names(store)[0].part_key(0, 0))
    fresh = Fresh(more=torch.zeros(50))

    with pytest.raises(Spoilt):
        start(store, fresh)
    restored = start(store, anew := Fresh(more=torch.zeros(50)))

    assert restored.name
    assert restored.name.step == 20
    assert not anew.tensors["more"].any()


def test_a_part_that_went_bad_on_the_way_is_read_again(store: MemoryStore) -> None:
    newest, _ = names(store)
    fresh = Fresh()

    restored = start(Unsteady(store, newest.part_key(0, 0)), fresh)

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
def test_what_is_found_out_before_anything_was_read_spoils_nothing(
    store: MemoryStore, hurt: Callable[[MemoryStore, Name], None]
) -> None:
    for name in names(store):
        hurt(store, name)
    store.delete("newest.json")
    fresh = Fresh()

    restored = start(store, fresh)

    assert restored.name is None
    assert not any(tensor.any() for tensor in fresh.tensors.values())
    assert not store.list("flawed/")


def test_a_checkpoint_that_was_mended_is_used_again(store: MemoryStore) -> None:
    newest, _ = names(store)
    key = newest.part_key(1, 0)
    sound = store.objects[key]
    garble(store, key)
    start(store, Fresh())
    archive = Archive(store)
    assert "digest" in str(list_checkpoints(archive)[0].flaw)
    assert verify(archive, newest)

    store.objects[key] = sound

    assert verify(archive, newest) is None
    assert start(store, Fresh()).name == newest


def test_two_ranks_that_find_all_damaged_leave_and_the_next_begin_anew(
    tmp_path: Path, undisturbed: Stage
) -> None:
    stage = Stage(tmp_path, attempt=undisturbed.attempt)
    shutil.copytree(undisturbed.path / "store", tmp_path / "store")
    saved = len(list((tmp_path / "store" / "lesson" / "commits").iterdir()))
    for part in (tmp_path / "store" / "lesson").glob("step-*/rank-1/*"):
        part.write_bytes(bytes(part.stat().st_size))

    spoilt = stage.run_ranks(2, LESSON, "40")
    anew = stage.run_ranks(2, LESSON, "40")

    [left, _] = stage.reports(ReportKind.WORKER_LEFT)
    [started] = stage.reports(ReportKind.TRAINING_STARTED)
    assert spoilt == [Exit.FAILED, Exit.FAILED]
    assert "start again" in str(left.body["detail"])
    assert anew == [0, 0]
    assert started.body["restored_from"] is None
    assert len(started.body["passed_over"]) == saved  # type: ignore[arg-type]
    assert stage.result == undisturbed.result
