"""The ranks that write each part of the state, for models that DDP keeps equal on all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from holdfast_worker.checkpoint.checkpointer import Checkpointer
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.save_plan import SavePlanner
from holdfast_worker.checkpoint.state_consistency import check_consistency
from holdfast_worker.checkpoint.state_dict import UnserializableState
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.distributed.tensor_layout import Owner
from holdfast_worker.protocol.policies import Cadence, CadenceUnit, OnFailure
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from worker.support.stores import MemoryStore, alone

RANKS = 3


@pytest.fixture(scope="module", autouse=True)
def _one_rank() -> Iterator[None]:
    """A process group, which DDP requires."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Scaled(nn.Module):
    """A model with a buffer that has the name of a parameter as prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(30_000))
        self.register_buffer("scale_ema", torch.ones(300))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


def writers(tracked: TrackedState, name: str) -> list[int]:
    """The ranks that write parts of a tensor."""
    shares = [SavePlanner(tracked, alone(rank, RANKS)).plan() for rank in range(RANKS)]
    return [r for r, share in enumerate(shares) if any(p.name == name for p in share.pieces)]


def test_buffer_named_like_a_parameter_is_not_divided() -> None:
    tracked = TrackedState({"model": DistributedDataParallel(Scaled())})

    assert writers(tracked, "model.scale") == [0, 1, 2]
    assert writers(tracked, "model.scale_ema") == [0]
    assert writers(tracked, "rank-1/model.scale_ema") == [1]


def test_parameter_that_ddp_ignores_is_not_divided() -> None:
    model = Scaled()
    model.shift = nn.Parameter(torch.ones(300))
    model._ddp_params_and_buffers_to_ignore = ["shift"]
    tracked = TrackedState({"model": DistributedDataParallel(model)})

    assert writers(tracked, "model.scale") == [0, 1, 2]
    assert writers(tracked, "model.shift") == [0]


def test_parameters_of_ddp_in_a_larger_model_are_divided() -> None:
    pair = nn.ModuleDict({"left": DistributedDataParallel(Scaled()), "right": Scaled()})
    tracked = TrackedState({"model": pair})

    assert writers(tracked, "model.left.module.scale") == [1, 2]
    assert writers(tracked, "model.right.scale") == [0]


def test_optimizer_in_parts_is_refused_by_its_name() -> None:
    model = Scaled()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        from torch.distributed.optim import ZeroRedundancyOptimizer
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)

    with pytest.raises(UnserializableState, match="optimizer is a ZeroRedundancyOptimizer"):
        check_consistency(TrackedState({"model": model, "optimizer": optimizer}), alone(0, 1))


def test_expanded_buffer_is_refused_by_its_name() -> None:
    model = Scaled()
    model.scale_ema = torch.ones(1).expand(300)

    with pytest.raises(UnserializableState, match=r"model\.scale_ema is an expanded tensor"):
        check_consistency(TrackedState({"model": model}), alone(0, 1))


@pytest.mark.parametrize("placement", [Shard(0), Replicate()])
def test_only_divided_tensors_are_refused_per_rank(placement: Shard | Replicate) -> None:
    mesh = init_device_mesh("cpu", (1,))
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [placement]))
    tracked = TrackedState({"model": model}, per_rank=["model"])

    if isinstance(placement, Replicate):
        check_consistency(tracked, alone(0, 1))
        assert tracked.encode()[1].owners["model.weight"] is Owner.PER_RANK
    else:
        with pytest.raises(
            UnserializableState, match=r"model\.weight is a DTensor .* without per_rank"
        ):
            check_consistency(tracked, alone(0, 1))


def test_tensor_that_all_ranks_hold_whole_is_compared() -> None:
    mesh = init_device_mesh("cpu", (1,))
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]))

    _, encoder = TrackedState({"model": model}).encode()

    assert encoder.owners["model.weight"] is Owner.VERIFIED_REPLICA


def test_accumulated_gradients_cause_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpointer = Checkpointer(
        CheckpointRepository(MemoryStore()),
        TrackedState({"model": model}),
        alone(0, 1),
        Cadence(CadenceUnit.AUTO, 0),
        OnFailure.STOP,
    )

    for batch in range(40):
        if batch % 4 == 3:
            optimizer.step()
        checkpointer.end_step()

    assert capsys.readouterr().err.count("stepped in 8 of the first 32 batches of steps()") == 1
