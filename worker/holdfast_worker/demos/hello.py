"""Ranks that say hello, and what each of them is told by its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast_worker.config import surroundings
from holdfast_worker.console import say
from holdfast_worker.demos.crew import play

TOLD: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells its ranks by their environment. Ranks of our own are told by arguments, and find nothing there."""


def hello(ranks: int) -> None:
    """Have every rank say hello."""
    play(_part, ranks)


def lines(rank: int, env: Mapping[str, str]) -> list[str]:
    """What a rank says that has this environment."""
    kind = "odd" if rank % 2 else "even"
    told = ", ".join(f"{name}={env.get(name, 'not set')}" for name in TOLD)
    return [
        f"Hello from rank {rank}!",
        f"Rank {rank}: I handle {kind} data!",
        f"Rank {rank}: {told}",
    ]


def _part(rank: int, _world_size: int) -> None:
    for line in lines(rank, surroundings()):
        say(line)
