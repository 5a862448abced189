"""A snapshot: the state at one moment, copied out of the way of the training."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import torch
from torch import Tensor

from holdfast_worker.archive import OWN
from holdfast_worker.moment import now
from holdfast_worker.shard import Shard
from holdfast_worker.tracked import Tracked
from holdfast_worker.tree import Encoder


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A rank's share of the state between two steps."""

    step: int
    taken_at: datetime
    stall_s: float
    """How long the training stood still for it."""
    shard: Shard


def take(step: int, tracked: Tracked, own: Any, rank: int, world_size: int) -> Snapshot:
    """The state of this moment: this rank's share of what is tracked, and all of what is its own.

    Raises:
        Unstorable: a part of the state is of a kind that no checkpoint can hold.
    """
    began_s = time.monotonic()
    taken_at = now()
    shared, single = Encoder(), Encoder()
    tree = {name: shared.encode(state, name) for name, state in tracked.state().items()}
    own_tree = single.encode(own, OWN)
    owners = divide(shared.tensors, tracked.replicated(), world_size)
    mine = {name: t for name, t in shared.tensors.items() if owners[name] == rank}
    copies = {name: _copy(tensor) for name, tensor in {**mine, **single.tensors}.items()}
    shard = Shard(rank, copies, own_tree, tree if rank == 0 else None)
    return Snapshot(step, taken_at, time.monotonic() - began_s, shard)


def divide(
    tensors: Mapping[str, Tensor], replicated: tuple[str, ...], world_size: int
) -> dict[str, int]:
    """Which rank writes each tensor: what all have goes to whoever has least so far, the rest to the first.

    Every rank comes to the same division by itself, as it depends on names and sizes alone.
    """
    owners: dict[str, int] = {}
    loads = [0] * world_size
    for name in sorted(tensors, key=lambda n: (-tensors[n].nbytes, n)):
        is_shared = name.startswith(replicated)
        owners[name] = loads.index(min(loads)) if is_shared else 0
        loads[owners[name]] += tensors[name].nbytes if is_shared else 0
    return owners


def _copy(tensor: Tensor) -> Tensor:
    """The values in fresh, contiguous memory of the CPU, whatever the strides and wherever they were."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)
