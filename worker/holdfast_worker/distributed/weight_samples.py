"""Samples: a few values of the tensors that DDP keeps the same on all ranks, and of which each rank writes a part.

If ranks have different values of such a tensor, a checkpoint of it is a mixture that no rank had. Comparing all of it would take a
copy of it on every rank. So each rank puts some values into its record, and the first rank compares them before it commits. The
tensors and places are drawn from the step, so that they are the same on all ranks and different at each save.

Ranks on unlike hardware may differ in the last digits of what they computed alike, which is no mixture. DDP gives all ranks the same
gradients, so such differences do not feed back, but they add up over the steps. A value that passes through zero keeps the error of the
larger values that it had before. So the values of a tensor are compared together, as vectors, and never one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

import torch
from torch import Tensor

from holdfast_worker.distributed.tensor_layout import TensorSpec

TENSORS: Final = 64
"""Sampled at a save. More keep the training waiting, about 10 us each; fewer find a single tensor that differs later."""
VALUES: Final = 8
"""Of each of them. More make records larger, fewer miss a difference in a part of a tensor more often."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """The difference between ranks that rounding explains, for a type."""

    tolerance: float
    """Share of the length of the values, as a vector. A higher value hides a mixture; a lower value ends runs on unlike hardware."""
    floor: float
    """Difference that is never reported: below it the type has few digits left, or a GPU may set values to zero."""
    least: int
    """Values other than zero that a comparison needs. Fewer may all be passing through zero, more leave sparse tensors uncompared."""


_WHOLE: Final = 2.0
"""Floor of integers: the quantized values of an optimizer, of which each may be rounded to its neighbour."""

ROUNDINGS: Final = {
    # If each operation of Adam errs by a last bit at random, weights are 1e-4 apart after 20,000 steps, and 1e-3 after 2,000,000.
    "F64": Rounding(2**-7, torch.finfo(torch.float64).tiny, 4),
    "F32": Rounding(2**-7, torch.finfo(torch.float32).tiny, 4),
    "I64": Rounding(2**-7, _WHOLE, 4),
    "I32": Rounding(2**-7, _WHOLE, 4),
    # The same errors, which a weight of 8 bits turns into 0.1 after 20,000 steps; weights of another model are 1.4 apart.
    "BF16": Rounding(0.4, torch.finfo(torch.bfloat16).tiny, VALUES),
    "F16": Rounding(0.4, 2**-18, VALUES),
    "I16": Rounding(0.4, _WHOLE, VALUES),
    "I8": Rounding(0.4, _WHOLE, VALUES),
    "U8": Rounding(0.4, _WHOLE, VALUES),
}
"""By type; tensors of other types are not sampled."""

Values: TypeAlias = tuple[float | None, ...]
"""Of one tensor; None for what is not finite."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Values on their way to the host."""

    names: Sequence[str] = ()
    values: Sequence[Tensor] = ()

    def read(self) -> dict[str, Values]:
        """The values by the name of their tensor; waits for a GPU."""
        numbers = (value.tolist() for value in self.values)
        return {
            name: tuple(v if math.isfinite(v) else None for v in some)
            for name, some in zip(self.names, numbers, strict=True)
        }


def draw(tensors: Mapping[str, Tensor], step: int) -> Samples:
    """Samples of some of these tensors, as they are now or as they are when the stream comes there."""
    chance = Random(step)
    names = chance.sample(sorted(tensors), min(TENSORS, len(tensors)))
    values: list[Tensor] = []
    for name in names:
        tensor = tensors[name].detach()
        count = tensor.numel()
        places = chance.sample(range(count), min(VALUES, count))
        # Not by a flat view, which a tensor of another memory format does not have.
        values.append(tensor.take(torch.tensor(places, device=tensor.device)).double())
    return Samples(names, values)


def first_apart(samples: Sequence[Mapping[str, Values]], kinds: Mapping[str, TensorSpec]) -> str:
    """The first tensor that differs between the first rank and another one, and which rank that is, in words; empty if none does."""
    for rank, here in enumerate(samples):
        for name in samples[0].keys() & here.keys():
            if _differ(samples[0][name], here[name], ROUNDINGS[kinds[name].dtype]):
                return (
                    f"{name} has different values on rank 0 and rank {rank}, although DDP gives both the same gradients: find out what "
                    f'one of them does alone, or keep it for each rank with run.track(..., per_rank=["{name.partition(".")[0]}"])'
                )
    return ""


def _differ(first: Values, here: Values, rounding: Rounding) -> bool:
    pairs = [(a, b) for a, b in zip(first, here, strict=True) if a is not None and b is not None]
    if any((a is None) is not (b is None) for a, b in zip(first, here, strict=True)):
        return True
    if sum(1 for a, b in pairs if a or b) < rounding.least:
        return False
    mine, others = zip(*pairs, strict=True)
    length = max(math.hypot(*mine), math.hypot(*others))
    return math.dist(mine, others) > max(rounding.tolerance * length, rounding.floor)
