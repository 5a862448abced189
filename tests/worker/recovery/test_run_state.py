"""A new rank gets the state that survivors share, and what the lost rank had alone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from holdfast_worker import rng
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.data.resumable_loader import Position
from holdfast_worker.distributed.recoverable_group import RecoverableGroup
from holdfast_worker.distributed.recovery_plan import Place
from holdfast_worker.recovery.replication import MAX_OWN_BYTES
from holdfast_worker.recovery.run_state import HAS_STEPPED, OTHER_GROUP, SHARDED, RunState
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


class Meter:
    """A tracked object that is neither a model nor an optimizer."""

    def __init__(self, total: float = 0.0) -> None:
        self.values = [total]

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


class Process:
    """The objects of one process, tracked as a script does."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.meter, self.own = Meter(seed), Meter(100 + seed)
        self.group = RecoverableGroup(seed % 2, 2)
        tracked = TrackedState(
            {
                "model": self.model,
                "optimizer": self.optimizer,
                "meter": self.meter,
                "own": self.own,
            },
            per_rank={"own"},
        )
        self.state = RunState(tracked, self.group)

    def train(self) -> None:
        self.model(torch.randn(8, 4)).square().mean().backward()
        self.optimizer.step()


def position() -> Position:
    states = {"global": rng.capture(), "own": []}
    return Position(2, 7, states, states, deal={"kind": "a kind"})


def as_json(tree: Any) -> Any:
    return json.loads(json.dumps(tree))


@pytest.fixture
def survivor() -> Process:
    process = Process(1)
    process.train()
    process.state.enter_boundary()
    process.group.enter(Place.BOUNDARY, 1)
    return process


def test_new_rank_equals_the_survivor_and_the_lost_rank(survivor: Process) -> None:
    lost, new = Process(2), Process(3)
    random.seed(5)
    np.random.seed(6)  # noqa: NPY002 - the global generator is part of the state
    own = lost.state.capture_own(position())
    expected = random.random(), np.random.random(), torch.rand(1).item()  # noqa: NPY002

    tree, tensors = survivor.state.capture()
    found = new.state.load(as_json(tree), tensors, own)

    for name, tensor in survivor.model.state_dict().items():
        assert torch.equal(new.model.state_dict()[name], tensor), name
    assert new.optimizer.state_dict()["state"][0]["step"] == 1
    assert (new.meter.values, new.own.values) == ([1], [102])
    assert replace(found, dawn={}, present={}) == replace(position(), dawn={}, present={})
    rng.restore(found.present["global"])
    assert (random.random(), np.random.random(), torch.rand(1).item()) == expected  # noqa: NPY002


def test_state_within_a_step_is_that_of_the_boundary(survivor: Process) -> None:
    survivor.group.enter(Place.STEP, 1)
    survivor.meter.values.append(9)

    tree, _ = survivor.state.capture()

    assert survivor.state.why_not() == ""
    assert as_json(tree)["trees"]["meter"] == {"values": [1]}


def test_frozen_rank_keeps_the_state_of_its_boundary(survivor: Process) -> None:
    """Its loop may reach the next boundary without an optimizer, and waits there."""
    survivor.group.enter(Place.STEP, 1)
    survivor.group.freeze()
    survivor.meter.values.append(9)

    survivor.state.enter_boundary()
    frozen, _ = survivor.state.capture()

    assert as_json(frozen)["trees"]["meter"] == {"values": [1]}
    survivor.group._is_frozen = False
    survivor.group.enter(Place.BOUNDARY, 2)
    later, _ = survivor.state.capture()
    assert as_json(later)["trees"]["meter"] == {"values": [1, 9]}


def test_stepped_optimizer_is_an_obstacle_within_the_step(survivor: Process) -> None:
    survivor.group.enter(Place.STEP, 1)
    survivor.train()
    within = survivor.state.why_not()

    survivor.group.enter(Place.BOUNDARY, 2)

    assert (within, survivor.state.why_not()) == (HAS_STEPPED, "")


def test_large_state_of_each_rank_is_an_obstacle() -> None:
    model = nn.Linear(1, MAX_OWN_BYTES)

    state = RunState(TrackedState({"model": model}, per_rank=True), RecoverableGroup(0, 2))

    assert "which is too much to copy in each step" in state.why_not()


def test_sharded_model_is_an_obstacle() -> None:
    with single_rank():
        mesh = init_device_mesh("cpu", (1,))
        weight = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
        model = nn.Module()
        model.weight = nn.Parameter(weight)

        state = RunState(TrackedState({"model": model}), RecoverableGroup(0, 2))

    assert state.why_not() == SHARDED


@pytest.mark.parametrize("is_nested", [False, True])
def test_ddp_with_another_process_group_is_an_obstacle(is_nested: bool) -> None:
    with single_rank():
        ddp: Any = DistributedDataParallel(nn.Linear(2, 2))
        ours = RecoverableGroup(0, 1)
        ours_too = DistributedDataParallel(nn.Linear(2, 2), process_group=ours, init_sync=False)
        item = nn.Sequential(ddp) if is_nested else ddp

        states = [
            RunState(TrackedState({"model": model}), ours, [model]) for model in (item, ours_too)
        ]

    assert [state.why_not() for state in states] == [OTHER_GROUP, ""]


@contextmanager
def single_rank() -> Iterator[None]:
    """A default group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
