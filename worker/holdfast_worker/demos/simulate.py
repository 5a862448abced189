"""What all-reduce does, without torch and without a network: processes post their vectors in shared memory, wait for each
other, and take the mean. Standard library only, so that it runs wherever Python does.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import MutableSequence, Sequence
from multiprocessing.synchronize import Barrier
from typing import Final

from holdfast_worker.console import say

WIDTH: Final = 4
"""Numbers in a vector."""
PATIENCE_S: Final = 60.0
"""With a process that does not come. Longer has a person wait for nothing, shorter fails on a busy machine."""


def simulate(workers: int) -> bool:
    """Say what all workers have before and after; whether they agree with the mean."""
    means = exchange(workers)
    reference = _mean([_own(rank) for rank in range(workers)])
    agree = all(mean == reference for mean in means)
    say(f"world_size (K) : {workers}")
    for rank, mean in enumerate(means):
        say(f"rank {rank}: local before = {_own(rank)} -> after mean = {mean}")
    say(f"reference mean : {reference}")
    say(f"all workers agree : {agree}")
    return agree


def exchange(workers: int) -> list[list[float]]:
    """The mean that each worker found, all in processes of their own."""
    spawn = multiprocessing.get_context("spawn")
    network, means = (spawn.RawArray("d", workers * WIDTH) for _ in range(2))
    posted = spawn.Barrier(workers)
    crew = [
        spawn.Process(target=_work, args=(rank, network, means, posted)) for rank in range(workers)
    ]
    for process in crew:
        process.start()
    for process in crew:
        process.join()
    return [means[rank * WIDTH : (rank + 1) * WIDTH] for rank in range(workers)]


def _work(
    rank: int, network: MutableSequence[float], means: MutableSequence[float], posted: Barrier
) -> None:
    """What every worker does: it knows its own vector alone until all are posted."""
    network[rank * WIDTH : (rank + 1) * WIDTH] = _own(rank)
    posted.wait(PATIENCE_S)
    vectors = [network[at : at + WIDTH] for at in range(0, len(network), WIDTH)]
    means[rank * WIDTH : (rank + 1) * WIDTH] = _mean(vectors)


def _own(rank: int) -> list[float]:
    return [rank + 1.0] * WIDTH


def _mean(vectors: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]
