"""`ExactSampler`: shuffles as `DistributedSampler` does, and is at any place of a pass at once."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from torch.utils.data import Sampler

from holdfast_worker.data.sample_order import Order, PermutedOrder, RemainderSampler, Sequential


class ExactSampler(Sampler[int]):
    """One order of the data for all ranks, dealt to them in turn; a place in place of `DistributedSampler`.

    Its state is the seed, the epoch, and how many samples of the epoch all ranks together have taken. From these any
    number of ranks goes on at the exact sample, at once: nothing is replayed, and no permutation is held in memory.
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
        """Of `dataset`, the share of one rank of `num_replicas`; the arguments are those of `DistributedSampler`.

        Raises:
            ValueError: there is no such rank.
        """
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} is not one of {num_replicas}")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.consumed = 0

    def set_epoch(self, epoch: int, consumed: int = 0) -> None:
        """Begin in this epoch, after so many samples that all ranks together have taken of it. `Run` does it."""
        self.epoch = epoch
        self.consumed = consumed

    @property
    def order(self) -> Order:
        """The order of this epoch."""
        length = len(self.dataset)
        return PermutedOrder(length, self.seed, self.epoch) if self.shuffle else Sequential(length)

    def __len__(self) -> int:
        return len(self._rest())

    def __iter__(self) -> Iterator[int]:
        return iter(self._rest())

    def _rest(self) -> RemainderSampler:
        return RemainderSampler(
            self.order, self.consumed, self.num_replicas, self.rank, drops_tail=self.drop_last
        )
