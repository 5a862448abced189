"""A permutation that is computed, not held: any place of it at once, in memory that does not grow with its length.

A Feistel network mixes the two halves of a number's bits, round by round, each by what the other half hashes to. Every
round can be undone, so it is a permutation of all numbers of so many bits. Those that fall beyond the length go through
it again until they fall within (cycle walking), less than twice on average, which makes it one of the length.

Checkpoints hold the key and a place, and rely on the rest: what this module computes never changes. Another way to
permute is another module beside it.

The order of a pass: which sample comes at which place, for all ranks together, and what each rank gets of it.

Places are dealt like cards: of R ranks, rank r gets every R-th place, from the r-th on. So what all ranks have taken after
the same number of steps is always the beginning of the order, and one number says where they are. From there on the rest
can be dealt to any other number of ranks, in batches of any size, as often as need be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler

Places = NDArray[np.int64]

ROUNDS: Final = 8
"""Through the network. More cost time; four are what theory asks for where the halves are wide."""

ROUNDS_IF_SHORT: Final = 24
"""The same up to 2 ** `SHORT_BITS`. The narrower the halves, the less a round mixes: after 8 rounds a chi-square test of
all 720 orders of six samples is 28 deviations off, after 16 it sees nothing."""

SHORT_BITS: Final = 16

FIRST_ODD, SECOND_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
"""Odd multipliers whose high bits depend on all bits: the golden ratio, and the first of SplitMix64."""


class Permutation:
    """All of 0 to `length` - 1, each once, in an order that depends on `seed` and `epoch` alone."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        if length < 1:
            raise ValueError("nothing can be put in order where there is nothing")
        self.length = length
        bits = max(2, (length - 1).bit_length())
        # Halves of one bit each at least; of an odd number of bits, the right half has the more.
        self._right_bits = np.uint64((bits + 1) // 2)
        self._left_bits = np.uint64(bits // 2)
        self._all_mask = np.uint64(2**bits - 1)
        self._right_mask = np.uint64(2 ** int(self._right_bits) - 1)
        rounds = ROUNDS if bits > SHORT_BITS else ROUNDS_IF_SHORT
        digest = hashlib.shake_256(f"holdfast/{seed}/{epoch}".encode()).digest(8 * (rounds + 1))
        self._turn, *self._keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def __call__(self, places: Places) -> Places:
        """What is at these places; each is at least 0, and less than the length."""
        found = self._mix(places.astype(np.uint64))
        while (beyond := np.flatnonzero(found >= self.length)).size:
            found[beyond] = self._mix(found[beyond])
        return found.astype(np.int64)

    def _mix(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        # A Feistel network alone makes even permutations of numbers of four bits and more. A turn by an odd number is
        # an odd one.
        turned = (numbers + self._turn) & self._all_mask
        left: NDArray[np.uint64] = turned >> self._right_bits
        right: NDArray[np.uint64] = turned & self._right_mask
        for first, second in zip(self._keys[::2], self._keys[1::2], strict=True):
            left ^= _hashed(right, first, self._left_bits)
            right ^= _hashed(left, second, self._right_bits)
        return (left << self._right_bits) | right


def _hashed(half: NDArray[np.uint64], key: np.uint64, bits: np.uint64) -> NDArray[np.uint64]:
    """So many bits that depend on all bits of `half` and of `key`."""
    mixed = (half ^ key) * FIRST_ODD
    mixed ^= mixed >> np.uint64(32)
    mixed *= SECOND_ODD
    return mixed >> (np.uint64(64) - bits)


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
class RandomOrder:
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
class PermutedOrder:
    """As `ExactSampler` shuffles: by a computed permutation."""

    length: int
    seed: int
    epoch: int


Order: TypeAlias = Sequential | Shuffled | RandomOrder | PermutedOrder

KINDS: Final[dict[str, type[Order]]] = {
    "sequential": Sequential,
    "shuffled": Shuffled,
    "drawn": RandomOrder,
    "keyed": PermutedOrder,
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
        case RandomOrder():
            return _redrawn(order).__getitem__
        case PermutedOrder(length, seed, epoch):
            return Permutation(length, seed, epoch)


def share(left: int, replicas: int, *, drops_tail: bool) -> int:
    """How many samples each rank gets of those left: all get as many, as `DistributedSampler` sees to."""
    return left // replicas if drops_tail else -(-left // replicas)


class RemainderSampler(Sampler[int]):
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


def _redrawn(order: RandomOrder) -> Places:
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
