"""Feeding: ranks one after another in one process, whose positions go through storage into worlds of other sizes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from holdfast_worker import rng
from holdfast_worker.checkpoint.state_dict import Encoder, decode
from holdfast_worker.data.resumable_loader import Position, ResumableLoader, reshard
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

Make = Callable[[int, int], Iterable[Any]]
"""The loader of a rank in a world, as a script makes it."""

Batch = tuple[int, tuple[Any, ...]]
"""The pass that it belongs to, and its samples."""


class Numbers(Dataset[int]):
    """The numbers below a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> int:
        return i


class Noisy(Dataset[Tensor]):
    """Numbers with noise, from wherever this process or worker draws."""

    def __init__(self, length: int = 11) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Tensor:
        return i + torch.rand(()) / 2


def striped(length: int, batch: int, **options: Any) -> Make:
    """Numbers by `DistributedSampler`; `drops_batch` and `workers` are the loader's, the rest the sampler's."""
    drops_batch, workers = options.pop("drops_batch", False), options.pop("workers", 0)

    def make(rank: int, world_size: int) -> DataLoader[int]:
        data = Numbers(length)
        sampler = DistributedSampler(data, world_size, rank, **options)
        return DataLoader(data, batch, sampler=sampler, drop_last=drops_batch, num_workers=workers)

    return make


def stored(position: Position) -> dict[str, Any]:
    """What comes back from a checkpoint."""
    encoder = Encoder()
    text = json.dumps(encoder.encode(asdict(position), "@rank"))
    tensors = {name: tensor.clone() for name, tensor in encoder.tensors.items()}
    tree: dict[str, Any] = decode(json.loads(text), tensors)
    return tree


def draws() -> tuple[object, ...]:
    """What a training draws itself in a step."""
    return torch.rand(2).tolist(), random.random(), np.random.rand()  # noqa: NPY002 - what a script draws from


@dataclass
class LoaderRun:
    """What a world of ranks saw between its start and a checkpoint."""

    batches: list[list[Batch]]
    """By rank and step."""
    drawn: list[list[object]]
    """What each rank drew itself in each step."""
    trees: list[Any]
    """What the checkpoint holds of each rank."""

    def steps(self) -> Iterator[tuple[int, list[Any]]]:
        """The pass and the samples of all ranks together, step by step; in the order in which they were dealt."""
        for ranks in zip(*self.batches, strict=True):
            assert len({number for number, _ in ranks}) == 1, "ranks are in different passes"
            width = max(len(samples) for _, samples in ranks)
            dealt = [s[i] for i in range(width) for _, s in ranks if i < len(s)]
            yield ranks[0][0], dealt


def run_loaders(
    make: Make,
    world_size: int,
    steps: int,
    trees: Sequence[Any] | None = None,
    *,
    continues: bool = False,
) -> LoaderRun:
    """A world of so many ranks that continues from `trees` for so many steps."""
    leg = LoaderRun([], [], [])
    for rank in range(world_size):
        rng.seed(3 + rank)
        start = reshard(trees, rank, world_size) if trees else None
        feed = ResumableLoader(make(rank, world_size), start, continues=continues, logs=rank == 0)
        seen: list[Batch] = []
        drawn: list[object] = []
        with closing(iter(feed)) as batches:  # type: ignore[type-var]
            for _ in range(steps):
                batch = next(batches)
                samples = batch.tolist() if isinstance(batch, Tensor) else batch
                seen.append((feed._passes, tuple(samples)))
                drawn.append(draws())
            leg.trees.append(stored(feed.position))
        leg.batches.append(seen)
        leg.drawn.append(drawn)
    return leg


def of_pass(number: int, legs: Iterable[LoaderRun]) -> list[Any]:
    """The samples of a pass in the order in which they were dealt, over all legs."""
    return [s for leg in legs for which, dealt in leg.steps() if which == number for s in dealt]


def repeated(samples: Iterable[Any]) -> list[Any]:
    """Samples that came more than once."""
    return sorted(sample for sample, times in Counter(samples).items() if times > 1)
