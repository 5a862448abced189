"""The division: what of the state a rank writes. Worked out anew only when the state takes another form.

To name and divide a thousand tensors takes as long as it takes to copy a tenth of a gigabyte, and the training stands still
for it; but names, types and sizes hardly ever change from one save to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast_worker.checkpoint.staging import CopyRange
from holdfast_worker.checkpoint.state_dict import Encoder
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.sharding import Sharding, local_part, memory_of, sharding_of
from holdfast_worker.distributed.state_consistency import SHARED, form_of
from holdfast_worker.distributed.tensor_layout import (
    ElementRange,
    LocalTensor,
    Owner,
    Piece,
    TensorSpec,
    compared,
    divide,
    own_name,
)
from holdfast_worker.distributed.weight_samples import ROUNDINGS
from holdfast_worker.protocol.reports import Json

_Form = list[tuple[str, torch.dtype, torch.Size, Sharding | None, Owner]]
"""All of which the division is made: the ranks stay as they are through a run."""


@dataclass(frozen=True, slots=True)
class SavePlan:
    """What of the state of this moment this rank writes."""

    keeping: Mapping[str, Owner]
    """The holder of each object that is tracked."""
    tree: dict[str, Json]
    """All that is tracked, encoded."""
    tensors: Mapping[str, Tensor]
    """Every tensor of it, by its name in the checkpoint; of those that are sharded, the whole."""
    forms: Mapping[str, str]
    """Of all tensors that the ranks share, without values; empty where there is one rank."""
    kinds: Mapping[str, TensorSpec]
    """Of the tensors of which this rank has pieces; on the first rank also of those without elements."""
    pieces: tuple[Piece, ...]
    """In the order of the stream."""
    sampled: tuple[str, ...]
    """Tensors of which each rank writes a part, and that can be sampled."""
    compared: tuple[Piece, ...]
    """What the first rank writes, and has to be the same here; on other ranks it lies behind the stream."""

    def parcels(self) -> Iterator[CopyRange]:
        """The pieces, as memory that is to be copied."""
        for piece in dict.fromkeys((*self.pieces, *self.compared)):
            tensor, region = self.tensors[piece.name], piece.region
            owner = memory_of(tensor)
            is_cut = isinstance(region, ElementRange) and owner.numel() == tensor.numel()
            start = region.start if is_cut and isinstance(region, ElementRange) else 0
            yield CopyRange.of(owner, start, region.count, piece.at)

    @property
    def size(self) -> int:
        """Of the stream, in bytes."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def room(self) -> int:
        """What a copy takes, in bytes."""
        return max(self.size, self.compared[-1].end if self.compared else 0)


class SavePlanner:
    """What is tracked, divided among the ranks."""

    def __init__(self, tracked: TrackedState, ranks: ProcessGroup) -> None:
        self.tracked = tracked
        self.ranks = ranks
        self._form: _Form | None = None
        self._kinds: Mapping[str, TensorSpec] = {}
        self._pieces: tuple[Piece, ...] = ()
        self._compared: tuple[Piece, ...] = ()
        self._forms: Mapping[str, str] = {}
        self._sampled: tuple[str, ...] = ()

    def share(self) -> SavePlan:
        """What this rank writes of the state as it is now.

        Raises:
            Unstorable: a part of the state is of a kind that no checkpoint can hold.
        """
        tree, encoder = self.tracked.encode()
        form = [
            (n, t.dtype, t.shape, sharding_of(t), encoder.holders[n])
            for n, t in encoder.tensors.items()
        ]
        if form != self._form:
            self._divide(encoder)
            self._form = form
        tensors = {self._stored(n, encoder): t for n, t in encoder.tensors.items()}
        return SavePlan(
            self.tracked.keeping,
            tree,
            tensors,
            self._forms,
            self._kinds,
            self._pieces,
            self._sampled,
            self._compared,
        )

    def _stored(self, name: str, encoder: Encoder) -> str:
        is_own = encoder.holders[name] is Owner.EACH
        return own_name(name, self.ranks.rank) if is_own else name

    def _divide(self, encoder: Encoder) -> None:
        held = {
            self._stored(n, encoder): local_part(t)
            or LocalTensor.whole(TensorSpec.of(t), encoder.holders[n])
            for n, t in encoder.tensors.items()
        }
        rank, world_size = self.ranks.rank, self.ranks.world_size
        self._pieces = divide(held, rank, world_size)
        end = self._pieces[-1].end if self._pieces else 0
        self._compared = (
            compared(held, end)
            if rank
            else tuple(p for p in self._pieces if held[p.name].holder is Owner.ALIKE)
        )
        shared = {n: h.kind for n, h in held.items() if h.holder in SHARED}
        self._forms = {n: form_of(k) for n, k in shared.items()} if world_size > 1 else {}
        self._sampled = tuple(
            n
            for n, h in held.items()
            if h.holder is Owner.ALL and h.size and h.kind.dtype in ROUNDINGS and world_size > 1
        )
        written = {piece.name for piece in self._pieces}
        # No rank writes a piece of a tensor without elements: the first one records what it is, or who has it alone.
        self._kinds = {
            n: item.kind
            for n, item in held.items()
            if n in written or (item.kind.count == 0 and (rank == 0 or item.holder is Owner.EACH))
        }
