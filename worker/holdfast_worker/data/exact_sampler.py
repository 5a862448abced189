"""`ExactSampler`: shuffles like `DistributedSampler`, and resumes without a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from torch.utils.data import Sampler

from holdfast_worker.data.sample_order import Order, PermutedOrder, RemainderSampler, Sequential


class ExactSampler(Sampler[int]):
    """A replacement for `DistributedSampler` that divides one order of the data among all ranks.

    Its state is the seed, the epoch, and how many samples of the epoch all ranks have consumed together. Any number of ranks
    resumes at the exact sample, without a replay and without a permutation in memory.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """Sample one rank's part of `dataset`; arguments as for `DistributedSampler`.

        Raises:
            ValueError: `rank` is out of range.
        """
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} is not in the range 0 to {num_replicas - 1}")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.consumed = 0

    def set_epoch(self, epoch: int, consumed: int = 0) -> None:
        """Begin this epoch, after `consumed` samples of all ranks together. `Run` calls it."""
        self.epoch = epoch
        self.consumed = consumed

    @property
    def order(self) -> Order:
        """The sample order of this epoch."""
        length = len(self.dataset)
        return PermutedOrder(length, self.seed, self.epoch) if self.shuffle else Sequential(length)

    def __len__(self) -> int:
        return len(self._remainder())

    def __iter__(self) -> Iterator[int]:
        return iter(self._remainder())

    def _remainder(self) -> RemainderSampler:
        return RemainderSampler(
            self.order, self.consumed, self.num_replicas, self.rank, drops_tail=self.drop_last
        )
