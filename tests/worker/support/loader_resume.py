"""Loaders of all ranks in one process, which resume from saved positions at any world size."""

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
"""Creates the loader of a rank in a world, like a training script."""

Batch = tuple[int, tuple[Any, ...]]
"""Number of the pass, and the samples."""


class Numbers(Dataset[int]):
    """The numbers below a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> int:
        return i


class Noisy(Dataset[Tensor]):
    """Numbers with noise from the global generators of this process or loader worker."""

    def __init__(self, length: int = 11) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Tensor:
        return i + torch.rand(()) / 2


def striped(length: int, batch: int, **options: Any) -> Make:
    """A loader of numbers with `DistributedSampler`.

    `drops_batch` and `workers` are options of the loader, the others of the sampler.
    """
    drops_batch, workers = options.pop("drops_batch", False), options.pop("workers", 0)

    def make(rank: int, world_size: int) -> DataLoader[int]:
        data = Numbers(length)
        sampler = DistributedSampler(data, world_size, rank, **options)
        return DataLoader(data, batch, sampler=sampler, drop_last=drops_batch, num_workers=workers)

    return make


def stored(position: Position) -> dict[str, Any]:
    """A position after a round trip through a checkpoint."""
    encoder = Encoder()
    text = json.dumps(encoder.encode(asdict(position), "@rank"))
    tensors = {name: tensor.clone() for name, tensor in encoder.tensors.items()}
    tree: dict[str, Any] = decode(json.loads(text), tensors)
    return tree


def draws() -> tuple[object, ...]:
    """Random numbers that a training draws in a step."""
    return torch.rand(2).tolist(), random.random(), np.random.rand()  # noqa: NPY002 - what a script draws from


@dataclass
class LoaderRun:
    """Samples of a world of ranks between its start and a checkpoint."""

    batches: list[list[Batch]]
    """By rank and step."""
    drawn: list[list[object]]
    """Random numbers that each rank drew in each step."""
    trees: list[Any]
    """State of each rank in the checkpoint."""

    def steps(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the pass and the samples of all ranks by step, in order of distribution."""
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
    """Resume a world of ranks from `trees` and run it for a number of steps."""
    run = LoaderRun([], [], [])
    for rank in range(world_size):
        rng.seed(3 + rank)
        start = reshard(trees, rank, world_size) if trees else None
        loader = ResumableLoader(make(rank, world_size), start, continues=continues, logs=rank == 0)
        seen: list[Batch] = []
        drawn: list[object] = []
        with closing(iter(loader)) as batches:  # type: ignore[type-var]
            for _ in range(steps):
                batch = next(batches)
                samples = batch.tolist() if isinstance(batch, Tensor) else batch
                seen.append((loader._passes, tuple(samples)))
                drawn.append(draws())
            run.trees.append(stored(loader.position))
        run.batches.append(seen)
        run.drawn.append(drawn)
    return run


def of_pass(number: int, runs: Iterable[LoaderRun]) -> list[Any]:
    """Samples of a pass in order of distribution, over all runs."""
    return [s for run in runs for which, dealt in run.steps() if which == number for s in dealt]


def repeated(samples: Iterable[Any]) -> list[Any]:
    """Samples that occur more than once."""
    return sorted(sample for sample, times in Counter(samples).items() if times > 1)
