"""Samples of replicated tensors, which DDP keeps equal and each rank writes in part.

If ranks have different values of such a tensor, its checkpoint mixes states. A full comparison would need a copy on every rank.
Instead, each rank adds some values to its shard metadata, and rank 0 compares them before it commits. Tensors and positions are
drawn from the step: equal on all ranks, and different at each save.

Ranks on different hardware may differ in the last digits, which is not a mixture. DDP gives all ranks the same gradients, so these
differences do not feed back, but they accumulate. A value that passes through zero keeps the error of its larger past
values. Therefore the sampled values of a tensor are compared as one vector and not one by one.
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

MAX_TENSORS: Final = 64
"""Tensors sampled per save. A higher value blocks training for longer, about 10 us each; a
lower value detects a single divergent tensor later."""
VALUES_PER_TENSOR: Final = 8
"""Values per tensor. A higher value enlarges the metadata; a lower value misses partial
differences more often."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """The difference between ranks that rounding explains, for one dtype."""

    tolerance: float
    """Share of the vector length. A higher value hides a mixture; a lower value ends runs on
    mixed hardware."""
    floor: float
    """Largest difference that is always accepted: the dtype has few digits below it, or a GPU
    may flush values to zero."""
    least: int
    """Non-zero values needed for a comparison. A lower value compares values that may all pass
    through zero; a higher value leaves sparse tensors uncompared."""


_WHOLE: Final = 2.0
"""Floor of integers: quantized optimizer values, each of which may be rounded to its
neighbour."""

ROUNDINGS: Final = {
    # If each operation of Adam errs by one last bit at random, weights differ by 1e-4 after 20,000 steps, and by 1e-3 after 2,000,000.
    "F64": Rounding(2**-7, torch.finfo(torch.float64).tiny, 4),
    "F32": Rounding(2**-7, torch.finfo(torch.float32).tiny, 4),
    "I64": Rounding(2**-7, _WHOLE, 4),
    "I32": Rounding(2**-7, _WHOLE, 4),
    # Errors of this kind grow to 0.1 after 20,000 steps in a weight with an 8-bit significand; weights of another model differ by 1.4.
    "BF16": Rounding(0.4, torch.finfo(torch.bfloat16).tiny, VALUES_PER_TENSOR),
    "F16": Rounding(0.4, 2**-18, VALUES_PER_TENSOR),
    "I16": Rounding(0.4, _WHOLE, VALUES_PER_TENSOR),
    "I8": Rounding(0.4, _WHOLE, VALUES_PER_TENSOR),
    "U8": Rounding(0.4, _WHOLE, VALUES_PER_TENSOR),
}
"""By dtype; tensors of other dtypes are not sampled."""

Values: TypeAlias = tuple[float | None, ...]
"""Sampled values of one tensor; None for non-finite ones."""


@dataclass(frozen=True, slots=True)
class WeightSamples:
    """Sampled values that are being copied to the host."""

    names: Sequence[str] = ()
    values: Sequence[Tensor] = ()

    def read(self) -> dict[str, Values]:
        """The values by tensor name; waits for a GPU."""
        numbers = (value.tolist() for value in self.values)
        return {
            name: tuple(v if math.isfinite(v) else None for v in some)
            for name, some in zip(self.names, numbers, strict=True)
        }


def draw_samples(tensors: Mapping[str, Tensor], step: int) -> WeightSamples:
    """Sample some of the tensors at `step`; on a GPU, when the stream reaches this point."""
    chance = Random(step)
    names = chance.sample(sorted(tensors), min(MAX_TENSORS, len(tensors)))
    values: list[Tensor] = []
    for name in names:
        tensor = tensors[name].detach()
        count = tensor.numel()
        places = chance.sample(range(count), min(VALUES_PER_TENSOR, count))
        # Not by a flat view, which tensors of some memory formats do not have.
        values.append(tensor.take(torch.tensor(places, device=tensor.device)).double())
    return WeightSamples(names, values)


def first_divergence(
    samples: Sequence[Mapping[str, Values]], kinds: Mapping[str, TensorSpec]
) -> str:
    """Describe the first tensor that differs from rank 0, and the rank; empty if none differs."""
    for rank, here in enumerate(samples):
        for name in samples[0].keys() & here.keys():
            if _differ(samples[0][name], here[name], ROUNDINGS[kinds[name].dtype]):
                return (
                    f"{name} has different values on rank 0 and rank {rank}, although DDP gives both the same gradients: find the code "
                    f'that changes it on one rank only, or track it per rank with run.track(..., per_rank=["{name.partition(".")[0]}"])'
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
