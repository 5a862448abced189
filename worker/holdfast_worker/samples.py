"""Samples: a few values of the tensors that DDP keeps the same on all ranks, and of which each rank writes a part.

If ranks have different values of such a tensor, a checkpoint of it is a mixture that no rank had. Comparing all of it would take a
copy of it on every rank. So each rank puts some values into its record, and the first rank compares them before it commits. The
tensors and places are drawn from the step, so that they are the same on all ranks and different at each save.

Ranks on unlike hardware may differ in the last digits of what they computed alike, which is no mixture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

import torch
from torch import Tensor

from holdfast_worker.layout import Kind

TENSORS: Final = 64
"""Sampled at a save. More keep the training waiting, about 10 us each; fewer find a single tensor that differs later."""
VALUES: Final = 4
"""Of each of them. More make records larger, fewer miss a difference in a part of a tensor more often."""
TOLERANCES: Final = {
    **dict.fromkeys(("F64", "F32", "I64", "I32"), 0.001),
    **dict.fromkeys(("F16", "BF16", "I16", "I8", "U8"), 0.1),
}
"""Share of the largest value by which two values may differ, by type. More hides a mixture, less ends runs on unlike hardware."""

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
        places = [chance.randrange(tensor.numel()) for _ in range(VALUES)]
        # Not by a flat view, which a tensor of another memory format does not have.
        values.append(tensor.take(torch.tensor(places, device=tensor.device)).double())
    return Samples(names, values)


def first_apart(samples: Sequence[Mapping[str, Values]], kinds: Mapping[str, Kind]) -> str:
    """The first tensor that differs between the first rank and another one, and which rank that is, in words; empty if none does."""
    for rank, here in enumerate(samples):
        for name in samples[0].keys() & here.keys():
            if _differ(samples[0][name], here[name], TOLERANCES[kinds[name].dtype]):
                return (
                    f"{name} has different values on rank 0 and rank {rank}, although DDP gives both the same gradients: find out what "
                    f'one of them does alone, or keep it for each rank with run.track(..., per_rank=["{name.partition(".")[0]}"])'
                )
    return ""


def _differ(first: Values, here: Values, tolerance: float) -> bool:
    scale = max((abs(v) for v in (*first, *here) if v is not None), default=0.0)
    return any(
        a != b if a is None or b is None else abs(a - b) > tolerance * scale
        for a, b in zip(first, here, strict=True)
    )
