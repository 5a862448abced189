"""The order of a pass: which sample comes at which place, for all ranks together, and what each rank gets of it.

Places are dealt like cards: of R ranks, rank r gets every R-th place, from the r-th on. So what all ranks have taken after
the same number of steps is always the beginning of the order, and one number says where they are. From there on the rest
can be dealt to any other number of ranks, in batches of any size, as often as need be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler

from holdfast_worker.permutation import Permutation, Places

CHUNK: Final = 1024
"""Places looked up at a time. Fewer cost more per sample, more delay the first batch: this many take a millisecond."""


@dataclass(frozen=True, slots=True)
class Sequential:
    """The order of the data itself."""

    length: int
    """How many samples the data has."""


@dataclass(frozen=True, slots=True)
class Shuffled:
    """As `DistributedSampler` shuffles: from a number that all ranks know."""

    length: int
    seed: int
    """The sampler's and the epoch, added."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """As `RandomSampler` shuffles: from generators, which are kept as they were when the pass began."""

    length: int
    torch: Tensor
    """torch's global generator."""
    own: tuple[Tensor, ...]
    """Generators that were given to the loader or its sampler."""
    of_loader: int | None
    """Which of `own` is the loader's; None: it draws from the global one."""
    of_sampler: int | None
    """Which of `own` is the sampler's, in the same way."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """As `ExactSampler` shuffles: by a computed permutation."""

    length: int
    seed: int
    epoch: int


Order: TypeAlias = Sequential | Shuffled | Drawn | Keyed

KINDS: Final[dict[str, type[Order]]] = {
    "sequential": Sequential,
    "shuffled": Shuffled,
    "drawn": Drawn,
    "keyed": Keyed,
}


def plain(order: Order) -> dict[str, Any]:
    """The order as a tree that a checkpoint can hold."""
    kind = next(name for name, kind in KINDS.items() if isinstance(order, kind))
    return {"kind": kind, **{name: getattr(order, name) for name in order.__slots__}}


def parse(tree: dict[str, Any]) -> Order:
    """The order that `plain` wrote."""
    return KINDS[tree["kind"]](**{name: value for name, value in tree.items() if name != "kind"})


def lookup(order: Order) -> Callable[[Places], Places]:
    """What finds the samples at places. Only the order of `ExactSampler` is not held in memory for it."""
    match order:
        case Sequential():
            return lambda places: places
        case Shuffled(length, seed):
            # Torch's own class draws it, for a world of one rank: so it is what torch draws, without what it pads.
            numbers: Any = range(length)  # Of the data only the length counts.
            alone: DistributedSampler[int] = DistributedSampler(numbers, 1, 0, seed=seed)
            return np.fromiter(alone, dtype=np.int64, count=length).__getitem__
        case Drawn():
            return _redrawn(order).__getitem__
        case Keyed(length, seed, epoch):
            return Permutation(length, seed, epoch)


def share(left: int, replicas: int, *, drops_tail: bool) -> int:
    """How many samples each rank gets of those left: all get as many, as `DistributedSampler` sees to."""
    return left // replicas if drops_tail else -(-left // replicas)


class Rest(Sampler[int]):
    """What a rank gets of an order from a place on. If it does not come out even, the last are dropped, or the order
    begins again for the last place of some ranks: as `DistributedSampler` does it."""

    def __init__(
        self, order: Order, base: int, replicas: int, replica: int, *, drops_tail: bool
    ) -> None:
        self._order = order
        self._base = base
        self._replicas = replicas
        self._replica = replica
        self._share = share(max(0, order.length - base), replicas, drops_tail=drops_tail)

    def __len__(self) -> int:
        return self._share

    def __iter__(self) -> Iterator[int]:
        if not self._share:
            return
        find = lookup(self._order)
        for first in range(0, self._share, CHUNK):
            turns = np.arange(first, min(first + CHUNK, self._share), dtype=np.int64)
            places = self._base + self._replica + turns * self._replicas
            samples: list[int] = find(places % self._order.length).tolist()
            yield from samples


def _redrawn(order: Drawn) -> Places:
    """The permutation that a loader drew: one of torch's own, over numbers, draws it again."""
    own = []
    for state in order.own:
        generator = torch.Generator()
        generator.set_state(state)
        own.append(generator)
    numbers: Any = range(order.length)
    of_sampler = None if order.of_sampler is None else own[order.of_sampler]
    loader: DataLoader[int] = DataLoader(
        numbers,
        order.length,
        sampler=RandomSampler(numbers, generator=of_sampler),
        generator=None if order.of_loader is None else own[order.of_loader],
        collate_fn=np.array,
    )
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(order.torch)
        return next(iter(loader))
