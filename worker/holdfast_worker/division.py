"""The division: what of the state a rank writes. Worked out anew only when the state takes another form.

To name and divide a thousand tensors takes as long as it takes to copy a tenth of a gigabyte, and the training stands still
for it; but names, types and sizes hardly ever change from one save to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast_worker.copying import Parcel
from holdfast_worker.layout import Held, Holder, Kind, Piece, Run, divide
from holdfast_worker.ranks import Ranks
from holdfast_worker.sharding import Sharding, local_part, memory_of, sharding_of
from holdfast_worker.tracked import Tracked
from holdfast_worker.tree import Encoder
from holdfast_worker.wire import Json

_Form = list[tuple[str, torch.dtype, torch.Size, Sharding | None]]
"""All of which the division is made: the ranks, and what DDP keeps alike, stay as they are through a run."""


@dataclass(frozen=True, slots=True)
class Share:
    """What of the state of this moment this rank writes."""

    tree: Json
    """All that is tracked, encoded."""
    tensors: Mapping[str, Tensor]
    """Every tensor of it; of those that are sharded, the whole."""
    kinds: Mapping[str, Kind]
    """Of the tensors of which this rank has pieces."""
    pieces: tuple[Piece, ...]
    """In the order of the stream."""

    def parcels(self) -> Iterator[Parcel]:
        """The pieces, as memory that is to be copied."""
        for piece in self.pieces:
            owner = memory_of(self.tensors[piece.name])
            kind, region = self.kinds[piece.name], piece.region
            is_cut = isinstance(region, Run) and owner.numel() == kind.count
            start = region.start if is_cut and isinstance(region, Run) else 0
            yield Parcel.of(owner, start, region.count, piece.at)

    @property
    def size(self) -> int:
        """In bytes."""
        return self.pieces[-1].end if self.pieces else 0


class Division:
    """What is tracked, divided among the ranks."""

    def __init__(self, tracked: Tracked, ranks: Ranks) -> None:
        self.tracked = tracked
        self.ranks = ranks
        self._form: _Form | None = None
        self._kinds: Mapping[str, Kind] = {}
        self._pieces: tuple[Piece, ...] = ()

    def share(self) -> Share:
        """What this rank writes of the state as it is now.

        Raises:
            Unstorable: a part of the state is of a kind that no checkpoint can hold.
        """
        encoder = Encoder()
        tree = {name: encoder.encode(state, name) for name, state in self.tracked.state().items()}
        form = [(n, t.dtype, t.shape, sharding_of(t)) for n, t in encoder.tensors.items()]
        if form != self._form:
            self._divide(encoder.tensors)
            self._form = form
        return Share(tree, encoder.tensors, self._kinds, self._pieces)

    def _divide(self, tensors: Mapping[str, Tensor]) -> None:
        replicated = self.tracked.replicated()
        held = {n: _hold(t, is_shared=n.startswith(replicated)) for n, t in tensors.items()}
        self._pieces = divide(held, self.ranks.rank, self.ranks.world_size)
        self._kinds = {piece.name: held[piece.name].kind for piece in self._pieces}


def _hold(tensor: Tensor, *, is_shared: bool) -> Held:
    """What this rank has of a tensor."""
    part = local_part(tensor)
    return part or Held.whole(Kind.of(tensor), Holder.ALL if is_shared else Holder.FIRST)
