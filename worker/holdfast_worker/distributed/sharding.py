"""Tensors sharded over ranks by FSDP2, and their local parts.

The only module that imports DTensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    """How a tensor is sharded over ranks."""

    mesh: Any
    placements: tuple[Any, ...]

    def region(self, kind: TensorSpec) -> Region:
        """This rank's region of such a tensor."""
        sizes, offsets = compute_local_shape_and_global_offset(
            kind.shape, self.mesh, self.placements
        )
        return region(kind.shape, offsets, sizes)

    def local_shape(self, kind: TensorSpec) -> tuple[int, ...]:
        """Shape of this rank's region."""
        sizes, _ = compute_local_shape_and_global_offset(kind.shape, self.mesh, self.placements)
        return tuple(sizes)

    def assemble(self, local: Tensor, kind: TensorSpec) -> Tensor:
        """The sharded tensor whose part on this rank is `local`."""
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
    """How a tensor is sharded over ranks; None if it is not."""
    if not isinstance(tensor, DTensor):
        return None
    return Sharding(tensor.device_mesh, tuple(tensor.placements))


def local_memory(tensor: Tensor) -> Tensor:
    """The part of a tensor in this rank's memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_storable(tensor: Tensor) -> bool:
    """Whether a tensor has final values, without a pending reduction over ranks."""
    sharding = sharding_of(tensor)
    return sharding is None or all(isinstance(p, Shard | Replicate) for p in sharding.placements)


def is_divided(tensor: Tensor) -> bool:
    """Whether ranks hold different parts of a tensor, unlike a replica on every rank."""
    sharding = sharding_of(tensor)
    return sharding is not None and not (
        all(isinstance(p, Replicate) for p in sharding.placements)
        and sharding.mesh.size() == dist.get_world_size()
    )


def local_part(tensor: Tensor) -> LocalTensor | None:
    """The part of a sharded tensor that this rank writes; None if the tensor is not sharded.

    If a mesh replicates a shard, the first of its ranks writes it.
    """
    sharding = sharding_of(tensor)
    if sharding is None or not is_divided(tensor):
        return None
    kind = TensorSpec.from_tensor(tensor)
    here = sharding.mesh.get_coordinate()
    is_writer = here is not None and all(
        place == 0
        for place, placement in zip(here, sharding.placements, strict=True)
        if isinstance(placement, Replicate)
    )
    return LocalTensor(
        kind, Owner.SHARDED, sharding.region(kind) if is_writer else ElementRange(0, 0)
    )


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor; a collective call if it is sharded."""
    if not isinstance(tensor, DTensor):
        return tensor
    whole: Tensor = tensor.full_tensor()
    return whole


def shard(model: nn.Module) -> nn.Module:
    """Shard a model in place; ranks fetch the parameters of the others block by block."""
    for block in shardable_blocks(model):
        fully_shard(block)
    fully_shard(model)
    return model


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 shards the parameters of a model over ranks."""
    return isinstance(model, FSDPModule)


def shardable_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Modules to fetch separately: elements of the outermost `ModuleList` and `Sequential`."""
    is_row = isinstance(model, nn.ModuleList | nn.Sequential)
    for child in model.children():
        if not is_row:
            yield from shardable_blocks(child)
        elif any(True for _ in child.parameters()):
            yield child


def has_unsharded_parameters(optimizer: Optimizer, model: nn.Module) -> bool:
    """Whether an optimizer has none of the parameters that the model has since it was sharded."""
    present = {id(parameter) for parameter in model.parameters()}
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return not known & present


def optimizer_problem(objects: Mapping[str, object], models: Iterable[nn.Module]) -> str:
    """Why a run with these objects cannot train sharded models; empty if it can.

    An optimizer of parameters that sharding has replaced has no effect.
    """
    sharded = list(models)
    for name, item in objects.items():
        if isinstance(item, Optimizer) and any(
            has_unsharded_parameters(item, model) for model in sharded
        ):
            return f"{name} was created before the model was sharded: call wrap(model, shard=True) first, then create it"
    return ""


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides)) if shape else ()
