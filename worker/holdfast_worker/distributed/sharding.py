"""Tensors that are sharded over ranks, as FSDP2 makes them: what of one is here, and back. The only module that knows DTensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer

from holdfast_worker.distributed.tensor_layout import (
    ElementRange,
    LocalTensor,
    Owner,
    Region,
    TensorSpec,
    region,
)


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor is spread over ranks."""

    mesh: Any
    placements: tuple[Any, ...]

    def region(self, kind: TensorSpec) -> Region:
        """What this rank has of such a tensor."""
        sizes, offsets = compute_local_shape_and_global_offset(
            kind.shape, self.mesh, self.placements
        )
        return region(kind.shape, offsets, sizes)

    def local_shape(self, kind: TensorSpec) -> tuple[int, ...]:
        """Of what this rank has."""
        sizes, _ = compute_local_shape_and_global_offset(kind.shape, self.mesh, self.placements)
        return tuple(sizes)

    def whole(self, local: Tensor, kind: TensorSpec) -> Tensor:
        """The sharded tensor of which this is what this rank has."""
        strides = _strides(kind.shape)
        return DTensor.from_local(
            local,
            self.mesh,
            self.placements,
            run_check=False,
            shape=torch.Size(kind.shape),
            stride=strides,
        )


def sharding_of(tensor: Tensor) -> Sharding | None:
    """How a tensor is spread over ranks; None if it is not."""
    if not isinstance(tensor, DTensor):
        return None
    return Sharding(tensor.device_mesh, tuple(tensor.placements))


def memory_of(tensor: Tensor) -> Tensor:
    """What of a tensor is in the memory of this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_storable(tensor: Tensor) -> bool:
    """Whether the values of a sharded tensor are there, and not still to be summed."""
    sharding = sharding_of(tensor)
    return sharding is None or all(isinstance(p, Shard | Replicate) for p in sharding.placements)


def is_divided(tensor: Tensor) -> bool:
    """Whether ranks have different parts of a tensor; not where each rank of the world has all of it."""
    sharding = sharding_of(tensor)
    return sharding is not None and not (
        all(isinstance(p, Replicate) for p in sharding.placements)
        and sharding.mesh.size() == dist.get_world_size()
    )


def local_part(tensor: Tensor) -> LocalTensor | None:
    """What this rank has to write of a divided tensor; None if it is not divided.

    Where a mesh holds the same shard several times, the first of those ranks writes it.
    """
    sharding = sharding_of(tensor)
    if sharding is None or not is_divided(tensor):
        return None
    kind = TensorSpec.of(tensor)
    here = sharding.mesh.get_coordinate()
    is_writer = here is not None and all(
        place == 0
        for place, placement in zip(here, sharding.placements, strict=True)
        if isinstance(placement, Replicate)
    )
    return LocalTensor(
        kind, Owner.SHARDS, sharding.region(kind) if is_writer else ElementRange(0, 0)
    )


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor; of one that is sharded, all ranks ask together."""
    if not isinstance(tensor, DTensor):
        return tensor
    whole: Tensor = tensor.full_tensor()
    return whole


def shard(model: nn.Module) -> nn.Module:
    """The same model, of whose parameters each rank holds its part, and fetches the others block by block."""
    for block in blocks(model):
        fully_shard(block)
    fully_shard(model)
    return model


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 spreads the parameters of a model over ranks."""
    return isinstance(model, FSDPModule)


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The parts that are fetched by themselves: elements of the outermost `ModuleList` and `Sequential` that have parameters."""
    is_row = isinstance(model, nn.ModuleList | nn.Sequential)
    for child in model.children():
        if not is_row:
            yield from blocks(child)
        elif any(True for _ in child.parameters()):
            yield child


def is_made_too_early(optimizer: Optimizer, model: nn.Module) -> bool:
    """Whether an optimizer knows none of the parameters that the model has now that it is sharded."""
    present = {id(parameter) for parameter in model.parameters()}
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return not known & present


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides)) if shape else ()
