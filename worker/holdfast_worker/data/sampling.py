"""Sampling schemes: the order of a loader's samples, and their division among the ranks.

The scheme is stored with the position in the data, so that a resume detects a changed loader and can continue with a different
number of ranks. The schemes of third-party samplers and batch samplers are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from holdfast_worker.data import sample_order
from holdfast_worker.data.sample_order import Order, RemainderSampler, samples_per_rank


class SourceKind(StrEnum):
    """The source of a loader's samples."""

    DEALT = "dealt"
    """A single order divided among the ranks: `DistributedSampler`, `ExactSampler`."""
    OWN = "own"
    """A complete order for each rank: `RandomSampler`, `SequentialSampler`."""
    UNKNOWN = "unknown"
    """A third-party sampler or batch sampler."""
    STREAM = "stream"
    """An iterable data set."""
    BARE = "bare"
    """An iterable of batches other than a `DataLoader`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingScheme:
    """How the samples of a pass are divided and batched for one rank."""

    kind: SourceKind
    name: str
    """Class name of the sample source."""
    length: int | None = None
    """Number of samples in the data; None if unknown."""
    batch_size: int | None = None
    """Batch size per rank; None if unknown."""
    drops_batch: bool = False
    """Whether an incomplete last batch is dropped."""
    replicas: int = 1
    """Number of ranks that share the order."""
    replica: int = 0
    """Index of this rank among them."""
    drops_tail: bool = False
    """Whether the sampler drops an uneven remainder instead of padding with the first samples."""
    workers: int = 0
    keeps_state: bool = False
    """Whether the loader has its own state, like `StatefulDataLoader`."""
    jumps: bool = False
    """Whether it starts at any position without replay: `ExactSampler`."""
    is_elastic: bool = False
    """Whether the data set itself supports any number of ranks: `ElasticDataset`, read in this
    process."""
    order: Order | None = None
    """None: unknown."""
    base: int = 0
    """The position from which the order is divided like this; earlier samples were consumed
    under a previous division."""
    is_inherited: bool = False
    """Whether the order belongs to a pass that another loader began."""

    def to_dict(self) -> dict[str, Any]:
        """Convert the scheme to a tree that a checkpoint can hold."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {
            **fields,
            "kind": self.kind.value,
            "order": None if self.order is None else sample_order.to_dict(self.order),
        }

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> Self:
        """Parse the result of `to_dict`."""
        order = tree["order"]
        return cls(
            **{
                **tree,
                "kind": SourceKind(tree["kind"]),
                "order": None if order is None else sample_order.parse(order),
            }
        )

    def consumed(self, taken: int) -> int | None:
        """Samples that all ranks have consumed after `taken` batches each; None if unknown."""
        dealt = self._samples_per_rank()
        if self.order is None or self.batch_size is None or dealt is None:
            return None
        mine = min(taken * self.batch_size, dealt)
        return min(self.base + mine * self.replicas, self.order.length)

    def is_pass_finished(self, taken: int) -> bool:
        """Whether `taken` batches complete the pass, as far as known."""
        dealt = self._samples_per_rank()
        if self.batch_size is None or dealt is None:
            return False
        whole, rest = divmod(dealt, self.batch_size)
        return taken >= whole + (1 if rest and not self.drops_batch else 0)

    def matches(self, other: SamplingScheme) -> bool:
        """Whether a loader returns the same samples in the same way, given the same order."""
        return self._signature() == other._signature()

    def remainder(self) -> RemainderSampler:
        """A sampler of this rank's part of the order from `base` on."""
        assert self.order is not None, "an unknown order cannot be divided"
        return RemainderSampler(
            self.order, self.base, self.replicas, self.replica, drops_tail=self.drops_tail
        )

    def _signature(self) -> tuple[object, ...]:
        return (
            self.kind,
            self.name if self.kind is SourceKind.UNKNOWN else "",
            self.length,
            self.batch_size,
            self.drops_batch,
            self.replicas,
            self.drops_tail,
            self.keeps_state,
        )

    def _samples_per_rank(self) -> int | None:
        if self.order is None:
            return None
        left = max(0, self.order.length - self.base)
        return samples_per_rank(left, self.replicas, drops_tail=self.drops_tail)
