"""Plans which part of the state each rank writes; recomputed when its structure changes.

Naming and dividing a thousand tensors takes as long as copying a tenth of a gigabyte, and it blocks training. Names, types and
sizes rarely change between saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast_worker.checkpoint.staging import CopyRange
from holdfast_worker.checkpoint.state_consistency import SHARED, describe_spec
from holdfast_worker.checkpoint.state_dict import Encoder
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.sharding import Sharding, local_memory, local_part, sharding_of
from holdfast_worker.distributed.tensor_layout import (
    ElementRange,
    LocalTensor,
    Owner,
    TensorPiece,
    TensorSpec,
    compared,
    divide_stream,
    own_name,
)
from holdfast_worker.distributed.weight_samples import ROUNDINGS
from holdfast_worker.protocol.reports import Json

_StateForm = list[tuple[str, torch.dtype, torch.Size, Sharding | None, Owner]]
"""Everything that a plan depends on; the ranks are fixed during a run."""


@dataclass(frozen=True, slots=True)
class SavePlan:
    """The part of the current state that this rank writes."""

    owners: Mapping[str, Owner]
    """The owner of each tracked object."""
    tree: dict[str, Json]
    """Encoded trees of all tracked objects."""
    tensors: Mapping[str, Tensor]
    """Every tensor by its name in the checkpoint; sharded ones as a whole."""
    forms: Mapping[str, str]
    """Descriptions of all shared tensors, without values; empty with a single rank."""
    kinds: Mapping[str, TensorSpec]
    """Specs of the tensors of which this rank has pieces; on rank 0 also of tensors without
    elements."""
    pieces: tuple[TensorPiece, ...]
    """In the order in which their bytes are stored."""
    sampled: tuple[str, ...]
    """Tensors of which each rank writes a part and that can be sampled."""
    compared: tuple[TensorPiece, ...]
    """Pieces that rank 0 writes and that must be equal here; other ranks stage them after their
    own bytes."""

    def copy_ranges(self) -> Iterator[CopyRange]:
        """The pieces as memory ranges to copy."""
        for piece in dict.fromkeys((*self.pieces, *self.compared)):
            tensor, region = self.tensors[piece.name], piece.region
            owner = local_memory(tensor)
            is_cut = isinstance(region, ElementRange) and owner.numel() == tensor.numel()
            start = region.start if is_cut and isinstance(region, ElementRange) else 0
            yield CopyRange.from_tensor(owner, start, region.count, piece.at)

    @property
    def size(self) -> int:
        """Size of the stored bytes."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def buffer_size(self) -> int:
        """Size of the staging buffer in bytes."""
        return max(self.size, self.compared[-1].end if self.compared else 0)


class SavePlanner:
    """Divides the tracked state among the ranks."""

    def __init__(self, tracked: TrackedState, ranks: ProcessGroup) -> None:
        self.tracked = tracked
        self.ranks = ranks
        self._form: _StateForm | None = None
        self._kinds: Mapping[str, TensorSpec] = {}
        self._pieces: tuple[TensorPiece, ...] = ()
        self._compared: tuple[TensorPiece, ...] = ()
        self._forms: Mapping[str, str] = {}
        self._sampled: tuple[str, ...] = ()

    def plan(self) -> SavePlan:
        """The part of the current state that this rank writes.

        Raises:
            UnserializableState: part of the state cannot be checkpointed.
        """
        tree, encoder = self.tracked.encode()
        form = [
            (n, t.dtype, t.shape, sharding_of(t), encoder.owners[n])
            for n, t in encoder.tensors.items()
        ]
        if form != self._form:
            self._partition(encoder)
            self._form = form
        tensors = {self._stored_name(n, encoder): t for n, t in encoder.tensors.items()}
        return SavePlan(
            self.tracked.owners,
            tree,
            tensors,
            self._forms,
            self._kinds,
            self._pieces,
            self._sampled,
            self._compared,
        )

    def _stored_name(self, name: str, encoder: Encoder) -> str:
        is_own = encoder.owners[name] is Owner.PER_RANK
        return own_name(name, self.ranks.rank) if is_own else name

    def _partition(self, encoder: Encoder) -> None:
        held = {
            self._stored_name(n, encoder): local_part(t)
            or LocalTensor.whole(TensorSpec.from_tensor(t), encoder.owners[n])
            for n, t in encoder.tensors.items()
        }
        rank, world_size = self.ranks.rank, self.ranks.world_size
        self._pieces = divide_stream(held, rank, world_size)
        end = self._pieces[-1].end if self._pieces else 0
        self._compared = (
            compared(held, end)
            if rank
            else tuple(p for p in self._pieces if held[p.name].owner is Owner.VERIFIED_REPLICA)
        )
        shared = {n: h.spec for n, h in held.items() if h.owner in SHARED}
        self._forms = {n: describe_spec(k) for n, k in shared.items()} if world_size > 1 else {}
        self._sampled = tuple(
            n
            for n, h in held.items()
            if h.owner is Owner.REPLICATED
            and h.size
            and h.spec.dtype in ROUNDINGS
            and world_size > 1
        )
        written = {piece.name for piece in self._pieces}
        # No rank writes a piece of an empty tensor: rank 0 records its spec, or the rank that alone has it.
        self._kinds = {
            n: item.spec
            for n, item in held.items()
            if n in written
            or (item.spec.count == 0 and (rank == 0 or item.owner is Owner.PER_RANK))
        }
