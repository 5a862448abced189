"""The deal: in which order a loader draws its samples, and how they come to the ranks; what is known of a loader.

It is kept with the position in the data, so that a resume can tell whether the loader is still the one it was, and go on
from another number of ranks. Of samplers and batch samplers that are not torch's or ours nothing can be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from holdfast_worker.data import sample_order
from holdfast_worker.data.sample_order import Order, RemainderSampler, share


class SourceKind(StrEnum):
    """What a loader's samples come from."""

    DEALT = "dealt"
    """One order, of which each rank gets its share: `DistributedSampler`, `ExactSampler`."""
    OWN = "own"
    """An order for each rank, which gets all of it: `RandomSampler`, `SequentialSampler`."""
    UNKNOWN = "unknown"
    """A sampler or batch sampler of somebody's own."""
    STREAM = "stream"
    """An iterable data set."""
    BARE = "bare"
    """No `DataLoader`, but something else that gives batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingScheme:
    """How the samples of a pass come to one rank."""

    kind: SourceKind
    name: str
    """What they come from, as its class is called."""
    length: int | None = None
    """Samples in the data; None if it does not say."""
    batch_size: int | None = None
    """Per rank; None if that is somebody else's business."""
    drops_batch: bool = False
    """Whether a last batch that is not full is left out."""
    replicas: int = 1
    """To how many the order is dealt."""
    replica: int = 0
    """Which of them this rank is."""
    drops_tail: bool = False
    """Whether the sampler leaves out what does not come out even, rather than to begin again with the first."""
    workers: int = 0
    keeps_state: bool = False
    """Whether the loader has a state of its own, as `StatefulDataLoader`."""
    jumps: bool = False
    """Whether it begins at any place at once, so that nothing need be replayed: `ExactSampler`."""
    is_elastic: bool = False
    """Whether the data set itself goes on with any number of ranks: `Elastic`, read in this process."""
    order: Order | None = None
    """None: it cannot be told."""
    base: int = 0
    """The place from which on the order was dealt like this. What came before, the ranks took as it was dealt then."""
    is_inherited: bool = False
    """Whether the order is of a pass that others began, and not the sampler's own."""

    def plain(self) -> dict[str, Any]:
        """The deal as a tree that a checkpoint can hold."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {
            **fields,
            "kind": self.kind.value,
            "order": None if self.order is None else sample_order.plain(self.order),
        }

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> Self:
        """The deal that `plain` gave."""
        order = tree["order"]
        return cls(
            **{
                **tree,
                "kind": SourceKind(tree["kind"]),
                "order": None if order is None else sample_order.parse(order),
            }
        )

    def consumed(self, taken: int) -> int | None:
        """How many samples of the order all ranks have taken, when each took so many batches; None: cannot be told."""
        dealt = self._dealt()
        if self.order is None or self.batch_size is None or dealt is None:
            return None
        mine = min(taken * self.batch_size, dealt)
        return min(self.base + mine * self.replicas, self.order.length)

    def is_over(self, taken: int) -> bool:
        """Whether so many batches are all of the pass, as far as can be told."""
        dealt = self._dealt()
        if self.batch_size is None or dealt is None:
            return False
        whole, rest = divmod(dealt, self.batch_size)
        return taken >= whole + (1 if rest and not self.drops_batch else 0)

    def is_like(self, other: SamplingScheme) -> bool:
        """Whether a loader gives the same samples in the same way, if the order is the same."""
        return self._shape() == other._shape()

    def rest(self) -> RemainderSampler:
        """What this rank gets of the order, from the base on."""
        assert self.order is not None, "what cannot be told is not dealt anew"
        return RemainderSampler(
            self.order, self.base, self.replicas, self.replica, drops_tail=self.drops_tail
        )

    def _shape(self) -> tuple[object, ...]:
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

    def _dealt(self) -> int | None:
        if self.order is None:
            return None
        left = max(0, self.order.length - self.base)
        return share(left, self.replicas, drops_tail=self.drops_tail)
