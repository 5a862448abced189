"""One rank of two that save what both hold whole, such as an average of weights: with the comparison of digests, or without."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from holdfast_worker.agreement import agree
from holdfast_worker.archive import Archive
from holdfast_worker.arena import Arena
from holdfast_worker.division import Division
from holdfast_worker.identity import Identity
from holdfast_worker.ranks import Ranks
from holdfast_worker.reports import Reports
from holdfast_worker.saver import Placement, Saver
from holdfast_worker.snapshot import take
from holdfast_worker.stores import open_store
from holdfast_worker.tracked import OfFirst, Tracked

from checkpoint.ranks import URL, trained
from checkpoint.state import SHAPES, Weights


class Unchecked(Weights, OfFirst):
    """The same of which nobody looks at the other ranks'."""


def measure(size: str, saves: int, *, is_compared: bool) -> dict[str, Any]:
    """Seconds of `track`, and of each save: stall, until it is durable, and a step beside it."""
    ranks = Ranks.join(Identity.read(os.environ))
    model, optimizer = trained(size)
    average = {name: torch.ones(shape) for name, shape in SHAPES[size].parameters().items()}
    extra = Weights(average) if is_compared else Unchecked(average)
    tracked = Tracked({"model": model, "optimizer": optimizer, "average": extra})
    began_s = time.monotonic()
    agree(tracked, ranks)
    track_s = time.monotonic() - began_s
    archive = Archive(open_store(URL, "job"))
    if ranks.rank == 0:
        archive.claims.take(1, "0" * 8, time.monotonic() + 60)
    placement = Placement(ranks.rank, ranks.world_size, 1, "0" * 8)
    saver = Saver(archive, placement, Reports(None), keep=1)
    division, arena = Division(tracked, ranks), Arena()
    some, turns = torch.rand(256, 256), []
    for step in range(saves + 1):
        dist.barrier()
        began_s = time.monotonic()
        saver.save(take(step, division, {}, arena))
        stall_s, steps = time.monotonic() - began_s, 0
        while saver.is_busy:
            some.mm(some)
            steps += 1
        durable_s = time.monotonic() - began_s
        assert not saver.is_broken, saver.complaint
        turns.append((stall_s, durable_s, (durable_s - stall_s) / max(1, steps)))
    dist.barrier()
    ranks.leave()
    return {"track_s": track_s, "turns": turns[1:]}


def main() -> None:
    """Be a rank."""
    warnings.simplefilter("ignore")
    asked = json.loads(sys.argv[1])
    said = measure(asked["size"], asked["saves"], is_compared=asked["is_compared"])
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
