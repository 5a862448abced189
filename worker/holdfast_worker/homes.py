"""Homes: where in this process the tensors of a checkpoint belong, so that they can be read straight to their places.

Memory that is there already need not be found, cleared and copied from: for a large state that takes longer than reading it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from holdfast_worker.layout import Kind
from holdfast_worker.sharding import Sharding, memory_of, sharding_of


@dataclass(frozen=True, slots=True)
class Homes:
    """The tensors that are there. What has no home is read into memory of its own."""

    live: Mapping[str, Tensor]
    """By the names that they have in checkpoints."""
    parameters: Mapping[str, Tensor]
    """What an optimizer optimizes, by the beginning of the names of what it will keep of each. It has no state before its
    first step; what it will have of the shape of its parameter is spread over the ranks as that."""
    own: frozenset[str] = frozenset()
    """Names of live tensors of which each rank has its own."""
    each: frozenset[str] | None = None
    """Names of the objects of which each rank has its own; None for who only looks."""

    @classmethod
    def none(cls) -> Self:
        """For who only looks into a checkpoint."""
        return cls({}, {})

    def flaw(self, each: Collection[str], saved: int, ranks: int) -> str:
        """Why a checkpoint of `saved` ranks, which has the state of `each` rank of these objects, fits no `ranks`; empty if it does."""
        if self.each is None or not each:
            return ""
        names, shared = ", ".join(sorted(each)), ", ".join(sorted(set(each) - self.each))
        if shared:
            return (
                f"the checkpoint holds {shared} for each rank, and the script tracks one for all ranks: "
                "name it in run.track(..., per_rank=[...]), or start with a new store"
            )
        if saved != ranks:
            return (
                f"the checkpoint holds {names} for each of {saved} ranks, and there are {ranks} now: "
                f"resume with {saved} ranks, or start with a new store"
            )
        return ""

    def sharding(self, name: str, kind: Kind) -> Sharding | None:
        """How a tensor of a checkpoint is spread over these ranks; None for one that every rank has."""
        if name in self.live:
            return sharding_of(self.live[name])
        parameter = self.parameters.get(name.rpartition(".")[0])
        if parameter is None or tuple(parameter.shape) != kind.shape:
            return None
        return sharding_of(parameter)

    def place(self, name: str, kind: Kind) -> Tensor | None:
        """What this rank has of a tensor, if its bytes can be read straight into it."""
        tensor = self.live.get(name)
        if tensor is None or Kind.of(tensor) != kind:
            return None
        here = memory_of(tensor).detach()
        # The bytes of what is conjugated or negated only when it is read are not its values.
        is_plain = here.is_contiguous() and not here.is_conj() and not here.is_neg()
        return here if here.device.type == "cpu" and is_plain else None
