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


class Slow(StagingBuffer):
    """Memory whose first read blocks the copying thread until the test releases it."""

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
        self.arena = Slow()
        self.step()

    def compute(self) -> None:
        """The first half of a step."""
        self.model(torch.randn(8, 40)).square().mean().backward()

    def step(self) -> None:
        """A whole one."""
        self.compute()
        self.optimizer.step()
        self.fence.end_step()

    def values(self) -> dict[str, bytes]:
        """All there is now."""
        return {
            n: t.detach().numpy().tobytes() for n, t in self.tracked.destinations().live.items()
        }

    def take(self) -> Snapshot:
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


def test_a_snapshot_is_of_the_moment_at_which_it_was_taken(training: Training) -> None:
    known = training.values()

    with training.arena:
        snapshot = training.take()
        training.compute()
    training.optimizer.step()

    assert copied(snapshot) == known
    assert training.values() != known


def test_an_optimizer_waits_for_the_copy(training: Training) -> None:
    known = training.values()
    stepped = threading.Event()

    def step() -> None:
        training.optimizer.step()
        stepped.set()

    with training.arena:
        snapshot = training.take()
        training.compute()
        waiting = threading.Thread(target=step)
        waiting.start()
        is_early = stepped.wait(0.2)
    waiting.join(30)

    assert not is_early
    assert stepped.is_set()
    assert copied(snapshot) == known
    assert snapshot.stall_s >= 0.1, "what the optimizer waited is part of what the save cost"


@pytest.mark.parametrize("hides", [False, True])
def test_a_state_that_is_changed_elsewhere_is_no_checkpoint(
    training: Training, hides: bool
) -> None:
    weight = training.model[0].weight

    with training.arena:
        snapshot = training.take()
        # `data` has a version of its own, so that what is done through it is seen in the values alone.
        change(weight.data if hides else weight)

    with pytest.raises(ConcurrentModification, match=r"outside of optimizer\.step"):
        snapshot.copying.wait()


@pytest.mark.parametrize("part", [slice(0, 1), slice(500, 520), slice(1199, 1200)])
def test_change_of_part_of_a_tensor_is_no_checkpoint(training: Training, part: slice) -> None:
    """Both ends of 1,200 elements and some of the middle, through `data`, which counts no version."""
    with training.arena:
        snapshot = training.take()
        training.model[0].weight.data.view(-1)[part] *= 0.5

    with pytest.raises(ConcurrentModification):
        snapshot.copying.wait()


def change(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(0.5)


def test_torn_snapshot_makes_the_next_copies_synchronous(training: Training) -> None:
    with training.arena:
        torn = training.take()
        change(training.model[0].weight)
    with pytest.raises(ConcurrentModification):
        torn.copying.wait()

    for _ in range(2):
        training.step()
        known = training.values()

        snapshot = training.take()
        change(training.model[0].weight)

        assert copied(snapshot) == known


def test_snapshot_after_a_step_without_optimizer_is_synchronous(training: Training) -> None:
    """As where a CUDA graph replays the step, or the weights are changed by other means."""
    training.fence.end_step()
    known = training.values()

    with training.arena:
        snapshot = training.take()
        change(training.model[0].weight)

    assert copied(snapshot) == known


def test_untracked_optimizer_waits_for_the_copy(training: Training) -> None:
    """A library may wrap the one that does the work."""
    other = torch.optim.SGD(training.model.parameters(), lr=0.1)
    known = training.values()

    with training.arena:
        snapshot = training.take()
        training.compute()
        waiting = threading.Thread(target=other.step)
        waiting.start()
    waiting.join(30)

    assert copied(snapshot) == known


def test_the_state_is_let_go_of_after_the_copy() -> None:
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


def test_snapshot_lets_go_of_state_that_the_training_replaces() -> None:
    """An upload takes minutes, in which there would be two copies of it, on a GPU perhaps."""
    scales = Scales()
    taken = snapshot(1, 0, 2, scales)
    seen = weakref.ref(scales.state["left"])

    taken.copying.wait()
    scales.state = {}

    assert seen() is None
    assert taken.memory.nbytes
