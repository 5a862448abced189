"""Demos with torch.distributed, on ranks of a launcher or on ranks that the demo starts."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from holdfast_worker.config import environment
from holdfast_worker.console import print_line
from holdfast_worker.topology.identity import RankIdentity

RankFunction: TypeAlias = Callable[[int, int], None]
"""The program of a rank, called with its rank and the number of ranks."""

START_METHOD: Final = "fork" if sys.platform == "linux" else "spawn"
"""How processes start.
Spawned ones load torch again, which takes seconds; forked ones share it."""


def run_ranks(part: RankFunction, ranks: int) -> None:
    """Run `part` on all ranks over Gloo; without a launcher, start `ranks` processes.

    Raises:
        ValueError: the rank variables of the environment are inconsistent.
    """
    identity = RankIdentity.read(environment())
    if identity.init_method is not None:
        _run_rank(identity.rank, part, identity.world_size, identity.init_method)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        # A file: another process could bind a port before the ranks have started.
        init_method = Path(folder, "meet").as_uri()
        start_processes(_run_rank, (part, ranks, init_method), ranks, start_method=START_METHOD)  # type: ignore[no-untyped-call]


def _run_rank(rank: int, part: RankFunction, world_size: int, init_method: str) -> None:
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    part(rank, world_size)
    # A rank that ends early would break the connections of those that are still connecting.
    dist.barrier()
    dist.destroy_process_group()


def allreduce(ranks: int) -> None:
    """Print the mean of all vectors on each rank."""
    run_ranks(_allreduce_part, ranks)


def _allreduce_part(rank: int, world_size: int) -> None:
    # Represents the gradient of this rank's data.
    vector = torch.ones(4) * (rank + 1)
    dist.all_reduce(vector, dist.ReduceOp.SUM)
    vector /= world_size
    print_line(f"[rank {rank}/{world_size}] averaged vector = {vector.tolist()}")


SHOWN_VARIABLES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for its ranks.
Ranks that the demo starts get arguments instead."""


def hello(ranks: int) -> None:
    """Print a greeting on each rank."""
    run_ranks(_hello_part, ranks)


def describe_rank(rank: int, env: Mapping[str, str]) -> list[str]:
    """The greeting of a rank in this environment."""
    kind = "odd" if rank % 2 else "even"
    variables = ", ".join(f"{name}={env.get(name, 'not set')}" for name in SHOWN_VARIABLES)
    return [
        f"Hello from rank {rank}!",
        f"Rank {rank}: I handle {kind} data!",
        f"Rank {rank}: {variables}",
    ]


def _hello_part(rank: int, _world_size: int) -> None:
    for line in describe_rank(rank, environment()):
        print_line(line)
