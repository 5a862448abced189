"""The stored position of a rank in its data, and its conversion to a new world size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast_worker import rng
from holdfast_worker.data.sample_order import RandomOrder
from holdfast_worker.data.sampling import SamplingScheme


@dataclass(frozen=True, slots=True)
class WorldSizeChange:
    """A resume with a different number of ranks than took the checkpoint. Not stored."""

    former_world_size: int
    """Number of ranks that took the checkpoint."""
    world_size: int
    rank: int
    """This rank among the current ones."""
    passes: int
    """Finished passes of the rank that was furthest."""
    is_same_data: bool
    """Whether all ranks had data of the same kind and length."""
    is_same_place: bool
    """Whether all ranks were also known to be at the same position of the same order."""
    data: tuple[Any, ...]
    """State of each former rank's data set; see `ElasticDataset`."""

    @property
    def is_new(self) -> bool:
        """Whether this rank did not exist before."""
        return self.rank >= self.former_world_size


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a rank in its data.

    The earliest checkpoints lack fields that have a default.
    """

    passes: int
    """Finished passes over the data; samplers call it the epoch."""
    taken: int
    """Batches consumed in this pass, or since it was last divided among ranks."""
    dawn: rng.RngStates
    """Generator states when this pass began or was last divided."""
    present: rng.RngStates
    """Current generator states."""
    deal: rng.RngStates | None = None
    """A `SamplingScheme`: how this pass is divided among ranks. None in old checkpoints."""
    loader: Any = None
    """State of a stateful loader; None for others."""
    apart: rng.RngStates | None = None
    """States of separate data generators, if the loader's state is restored without replay."""
    data: Any = None
    """State of an `ElasticDataset`, `at_dawn` and `now`; None for others."""
    first_pass: int | None = None
    """The first pass over the current data set object if passes continue one another; None: each
    pass restarts."""
    earlier: int = 0
    """Batches from that pass up to the current one."""
    move: WorldSizeChange | None = None
    """None: the number of ranks is unchanged."""

    @property
    def consumed(self) -> int | None:
        """Samples of this pass that all ranks have consumed together; None if unknown."""
        return SamplingScheme.parse(self.deal).consumed(self.taken) if self.deal else None


def reshard(trees: Sequence[Any], rank: int, world_size: int) -> Position:
    """The position from which a rank resumes, from all former ranks' positions in rank order.

    With an unchanged number of ranks it is the rank's own position. Otherwise a former rank keeps its random generators, and
    a new rank gets generators that depend only on the checkpoint and its rank.
    """
    former = [Position(**tree) for tree in trees]
    if len(former) == world_size:
        return former[rank]
    deals = [SamplingScheme.parse(position.deal) if position.deal else None for position in former]
    mine = former[rank] if rank < len(former) else former[0]
    present = mine.present
    if rank >= len(former):
        present = {**present, "global": rng.derive_states(present["global"], rank)}
    is_alike = None not in deals and len({_data_key(deal) for deal in deals}) == 1
    move = WorldSizeChange(
        former_world_size=len(former),
        world_size=world_size,
        rank=rank,
        passes=max(position.passes for position in former),
        is_same_data=is_alike,
        is_same_place=is_alike
        and len({_place_key(*pair) for pair in zip(former, deals, strict=True)}) == 1,
        data=tuple(position.data and position.data["now"] for position in former),
    )
    return replace(mine, present=present, move=move)


def _data_key(deal: SamplingScheme | None) -> object:
    """A key that is equal for ranks with parts of the same data."""
    return deal and (deal.kind, deal.length)


def _place_key(position: Position, deal: SamplingScheme | None) -> object:
    """A key that is equal for ranks at the same position of one order."""
    order = deal.order if deal and not isinstance(deal.order, RandomOrder) else None
    return position.passes, position.consumed, order
