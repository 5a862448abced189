"""A crew: the ranks that take part in a demo. Those that a launcher has started, or some of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from holdfast_worker.config import surroundings
from holdfast_worker.identity import Identity

Part: TypeAlias = Callable[[int, int], None]
"""What every rank does, who is told its number and how many there are."""

START: Final = "fork" if sys.platform == "linux" else "spawn"
"""How processes begin. Spawned ones are clean, but load torch again, each for seconds; forked ones have it."""


def play(part: Part, ranks: int) -> None:
    """Have every rank do its part, met by gloo; with nothing around it, start `ranks` of them.

    Raises:
        ValueError: what the environment says of ranks cannot be true.
    """
    who = Identity.read(surroundings())
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
