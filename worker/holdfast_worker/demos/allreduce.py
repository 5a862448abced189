"""All-reduce, for real: every rank begins with a vector of its own, and ends with the mean of all."""

from __future__ import annotations

import torch
import torch.distributed as dist

from holdfast_worker.console import say
from holdfast_worker.demos.crew import play


def allreduce(ranks: int) -> None:
    """Have every rank say the mean."""
    play(_part, ranks)


def _part(rank: int, world_size: int) -> None:
    # As if it were the gradient of data that no other rank has seen.
    vector = torch.ones(4) * (rank + 1)
    dist.all_reduce(vector, dist.ReduceOp.SUM)
    vector /= world_size
    say(f"[rank {rank}/{world_size}] averaged vector = {vector.tolist()}")
