"""A crew: the ranks that take part in a demo. Those that a launcher has started, or some of its own.

All-reduce, for real: every rank begins with a vector of its own, and ends with the mean of all.

Ranks that say hello, and what each of them is told by its environment.
"""

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

Part: TypeAlias = Callable[[int, int], None]
"""What every rank does, who is told its number and how many there are."""

START: Final = "fork" if sys.platform == "linux" else "spawn"
"""How processes begin. Spawned ones are clean, but load torch again, each for seconds; forked ones have it."""


def run_ranks(part: Part, ranks: int) -> None:
    """Have every rank do its part, met by gloo; with nothing around it, start `ranks` of them.

    Raises:
        ValueError: what the environment says of ranks cannot be true.
    """
    who = RankIdentity.read(environment())
    if who.meeting is not None:
        _play(who.rank, part, who.world_size, who.meeting)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        # A file that nobody else knows: a port might be taken before the ranks are there.
        place = Path(folder, "meet").as_uri()
        start_processes(_play, (part, ranks, place), ranks, start_method=START)  # type: ignore[no-untyped-call]


def _play(rank: int, part: Part, world_size: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    part(rank, world_size)
    dist.destroy_process_group()


def allreduce(ranks: int) -> None:
    """Have every rank say the mean."""
    run_ranks(_allreduce_part, ranks)


def _allreduce_part(rank: int, world_size: int) -> None:
    # As if it were the gradient of data that no other rank has seen.
    vector = torch.ones(4) * (rank + 1)
    dist.all_reduce(vector, dist.ReduceOp.SUM)
    vector /= world_size
    print_line(f"[rank {rank}/{world_size}] averaged vector = {vector.tolist()}")


TOLD: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells its ranks by their environment. Ranks of our own are told by arguments, and find nothing there."""


def hello(ranks: int) -> None:
    """Have every rank say hello."""
    run_ranks(_hello_part, ranks)


def lines(rank: int, env: Mapping[str, str]) -> list[str]:
    """What a rank says that has this environment."""
    kind = "odd" if rank % 2 else "even"
    told = ", ".join(f"{name}={env.get(name, 'not set')}" for name in TOLD)
    return [
        f"Hello from rank {rank}!",
        f"Rank {rank}: I handle {kind} data!",
        f"Rank {rank}: {told}",
    ]


def _hello_part(rank: int, _world_size: int) -> None:
    for line in lines(rank, environment()):
        print_line(line)
