"""A snapshot is consistent although it is copied while training continues."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pytest
import torch
from holdfast_worker.checkpoint.host_memory import StagingBuffer
from holdfast_worker.checkpoint.save_plan import SavePlanner
from holdfast_worker.checkpoint.snapshot import Snapshot, stage
from holdfast_worker.checkpoint.staging import (
    ConcurrentModification,
    CopyRange,
    OptimizerBarrier,
    StagingCopy,
)
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.distributed.process_group import ProcessGroup
from torch import Tensor, nn
from worker.support.stores import Scales, snapshot


class BlockingBuffer(StagingBuffer):
    """A staging buffer whose first use blocks the copying thread until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()

    def memory(self, size: int) -> memoryview:
        if threading.current_thread().name == "holdfast-copying":
            assert self.go_on.wait(30)
        return super().memory(size)

    def __enter__(self) -> Self:
        self.go_on.clear()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.go_on.set()


class Training:
    """A model with a buffer, whose optimizer has state."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.tracked = TrackedState({"model": self.model, "optimizer": self.optimizer})
        self.fence = OptimizerBarrier()
        self.arena = BlockingBuffer()
        self.step()

    def compute(self) -> None:
        """Run the forward and backward pass of a step."""
        self.model(torch.randn(8, 40)).square().mean().backward()

    def step(self) -> None:
        """Run a whole step."""
        self.compute()
        self.optimizer.step()
        self.fence.end_step()

    def values(self) -> dict[str, bytes]:
        """Current values of all tensors."""
        return {
            n: t.detach().numpy().tobytes() for n, t in self.tracked.destinations().live.items()
        }

    def snapshot_now(self) -> Snapshot:
        return stage(
            1, SavePlanner(self.tracked, ProcessGroup.single()), {}, self.arena, barrier=self.fence
        )


@pytest.fixture
def training() -> Iterator[Training]:
    made = Training()
    yield made
    made.fence.close()


def copied(snapshot: Snapshot) -> dict[str, bytes]:
    snapshot.copying.wait()
    return {p.name: bytes(snapshot.memory[p.at : p.end]) for p in snapshot.pieces}


def test_snapshot_holds_the_values_of_its_step(training: Training) -> None:
    known = training.values()

    with training.arena:
        snapshot = training.snapshot_now()
        training.compute()
    training.optimizer.step()

    assert copied(snapshot) == known
    assert training.values() != known


def test_optimizer_waits_for_the_copy(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    known = training.values()
    stepped, waits = threading.Event(), threading.Event()

    def step() -> None:
        training.optimizer.step()
        stepped.set()

    with training.arena:
        snapshot = training.snapshot_now()
        training.compute()
        waiting = threading.Thread(target=step)
        thread = snapshot.copying._thread
        assert thread
        monkeypatch.setattr(thread, "join", lambda join=thread.join: (waits.set(), join()))
        waiting.start()
        assert waits.wait(30)
        is_early = stepped.wait(0.2)
    waiting.join(30)

    assert not is_early
    assert stepped.is_set()
    assert copied(snapshot) == known
    assert snapshot.stall_s >= 0.1, "what the optimizer waited is part of what the save cost"


@pytest.mark.parametrize("hides", [False, True])
def test_state_changed_during_the_copy_is_not_committed(training: Training, hides: bool) -> None:
    weight = training.model[0].weight

    with training.arena:
        snapshot = training.snapshot_now()
        # `data` has its own version counter, so that changes through it show only in the values.
        change(weight.data if hides else weight)

    with pytest.raises(ConcurrentModification, match=r"outside of optimizer\.step"):
        snapshot.copying.wait()


@pytest.mark.parametrize("part", [slice(0, 1), slice(500, 520), slice(1199, 1200)])
def test_partly_changed_tensor_is_not_committed(training: Training, part: slice) -> None:
    """Changes at both ends and in the middle, through `data`, which has no version counter."""
    with training.arena:
        snapshot = training.snapshot_now()
        training.model[0].weight.data.view(-1)[part] *= 0.5

    with pytest.raises(ConcurrentModification):
        snapshot.copying.wait()


def change(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(0.5)


def test_torn_snapshot_makes_the_next_copies_synchronous(training: Training) -> None:
    with training.arena:
        torn = training.snapshot_now()
        change(training.model[0].weight)
    with pytest.raises(ConcurrentModification):
        torn.copying.wait()

    for _ in range(2):
        training.step()
        known = training.values()

        snapshot = training.snapshot_now()
        change(training.model[0].weight)

        assert copied(snapshot) == known


def test_snapshot_after_a_step_without_optimizer_is_synchronous(training: Training) -> None:
    """The case of a CUDA graph that replays the step, or of weights that are changed otherwise."""
    training.fence.end_step()
    known = training.values()

    with training.arena:
        snapshot = training.snapshot_now()
        change(training.model[0].weight)

    assert copied(snapshot) == known


def test_untracked_optimizer_waits_for_the_copy(training: Training) -> None:
    """A library may wrap the optimizer that makes the steps."""
    other = torch.optim.SGD(training.model.parameters(), lr=0.1)
    known = training.values()

    with training.arena:
        snapshot = training.snapshot_now()
        training.compute()
        waiting = threading.Thread(target=other.step)
        waiting.start()
    waiting.join(30)

    assert copied(snapshot) == known


def test_state_is_released_after_the_copy() -> None:
    arena = StagingBuffer()
    arena.reserve(64)
    copying = StagingCopy(arena)
    source = torch.ones(16)
    seen = weakref.ref(source)

    copying.start([], [CopyRange.from_tensor(source, 0, 16, 0)])
    copying.wait()
    del source

    assert seen() is None
    assert bytes(arena.memory(64)) == torch.ones(16).numpy().tobytes()


def test_snapshot_releases_state_that_training_replaces() -> None:
    """An upload takes minutes, during which two copies would exist, possibly on a GPU."""
    scales = Scales()
    staged = snapshot(1, 0, 2, scales)
    seen = weakref.ref(scales.state["left"])

    staged.copying.wait()
    scales.state = {}

    assert seen() is None
    assert staged.memory.nbytes
