"""The position of a rank in its data, as a checkpoint holds it, and what becomes of it in a world of another size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast_worker import rng
from holdfast_worker.data.sample_order import RandomOrder
from holdfast_worker.data.sampling import SamplingScheme


@dataclass(frozen=True, slots=True)
class WorldSizeChange:
    """That another number of ranks goes on than took the checkpoint. Never stored."""

    former: int
    """How many ranks took it."""
    world_size: int
    rank: int
    """Of those that go on."""
    passes: int
    """Of the rank that was furthest."""
    is_alike: bool
    """Whether all ranks had data of the same kind and length."""
    is_together: bool
    """Whether they were also at the same place of the same order, as far as can be told."""
    data: tuple[Any, ...]
    """What the data set of each former rank had to say; see `Elastic`."""

    @property
    def is_new(self) -> bool:
        """Whether there was no such rank before."""
        return self.rank >= self.former


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is in its data. Fields that have a default are younger than the first checkpoints."""

    passes: int
    """Whole passes over the data; what samplers call the epoch."""
    taken: int
    """Batches taken of this pass; if it was dealt anew on the way, since then."""
    dawn: rng.States
    """The generators when this pass began, or was dealt anew."""
    present: rng.States
    """The generators now."""
    deal: rng.States | None = None
    """A `Deal`: how this pass comes to the ranks. None in old checkpoints."""
    loader: Any = None
    """What a loader with a state of its own had to say; None of others."""
    apart: rng.States | None = None
    """The generators that the data draws from, if they are others, and if the loader's state brings it there."""
    data: Any = None
    """What an `Elastic` data set had to say, `at_dawn` and `now`; None of others."""
    first_pass: int | None = None
    """The first pass of the data set that is read, if each pass continues where the last one ended; None: each begins anew."""
    earlier: int = 0
    """Batches from that pass to the one before this."""
    move: WorldSizeChange | None = None
    """None: as many ranks go on as there were."""

    @property
    def consumed(self) -> int | None:
        """Samples of this pass that all ranks together have taken; None: it cannot be told."""
        return SamplingScheme.parse(self.deal).consumed(self.taken) if self.deal else None


def reshard(trees: Sequence[Any], rank: int, world_size: int) -> Position:
    """The position from which a rank goes on, from what each rank of a checkpoint has stored of its own, in their order.

    With as many ranks as before it is the rank's own, unchanged. Otherwise a rank that was there before keeps its random
    generators, and a new one gets generators of its own, which depend on the checkpoint and on its number alone.
    """
    former = [Position(**tree) for tree in trees]
    if len(former) == world_size:
        return former[rank]
    deals = [SamplingScheme.parse(position.deal) if position.deal else None for position in former]
    mine = former[rank] if rank < len(former) else former[0]
    present = mine.present
    if rank >= len(former):
        present = {**present, "global": rng.branch(present["global"], rank)}
    is_alike = None not in deals and len({_alike(deal) for deal in deals}) == 1
    move = WorldSizeChange(
        former=len(former),
        world_size=world_size,
        rank=rank,
        passes=max(position.passes for position in former),
        is_alike=is_alike,
        is_together=is_alike
        and len({_place(*pair) for pair in zip(former, deals, strict=True)}) == 1,
        data=tuple(position.data and position.data["now"] for position in former),
    )
    return replace(mine, present=present, move=move)


def _alike(deal: SamplingScheme | None) -> object:
    """What is the same on all ranks whose data is cut from the same whole."""
    return deal and (deal.kind, deal.length)


def _place(position: Position, deal: SamplingScheme | None) -> object:
    """What is the same on all ranks that are at the same place of one order."""
    order = deal.order if deal and not isinstance(deal.order, RandomOrder) else None
    return position.passes, position.consumed, order
