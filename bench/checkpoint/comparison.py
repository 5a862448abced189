"""One of two ranks that save averaged weights, with or without a comparison of digests."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from holdfast_worker.checkpoint.host_memory import StagingBuffer
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.save_plan import SavePlanner
from holdfast_worker.checkpoint.snapshot import stage
from holdfast_worker.checkpoint.state_consistency import check_consistency
from holdfast_worker.checkpoint.stateful import RankZeroState, TrackedState
from holdfast_worker.checkpoint.writer import AsyncWriter, WriterIdentity
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.storage import open_store
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.topology.identity import RankIdentity

from checkpoint.ranks import URL, trained
from checkpoint.state import SHAPES, Weights


class Unchecked(Weights, RankZeroState):
    """Averaged weights without a comparison between ranks."""


def measure(size: str, saves: int, *, is_compared: bool) -> dict[str, Any]:
    """Durations of `track`, and of the stall, upload and a concurrent step of each save."""
    ranks = ProcessGroup.join(RankIdentity.read(os.environ))
    model, optimizer = trained(size)
    average = {name: torch.ones(shape) for name, shape in SHAPES[size].parameters().items()}
    extra = Weights(average) if is_compared else Unchecked(average)
    tracked = TrackedState({"model": model, "optimizer": optimizer, "average": extra})
    began_s = time.monotonic()
    check_consistency(tracked, ranks)
    track_s = time.monotonic() - began_s
    repository = CheckpointRepository(open_store(URL, "job", os.environ))
    if ranks.rank == 0:
        repository.tokens.claim(1, "0" * 8, time.monotonic() + 60)
    placement = WriterIdentity(ranks.rank, ranks.world_size, 1, "0" * 8)
    writer = AsyncWriter(repository, placement, Reporter(None), keep=1)
    division, buffer = SavePlanner(tracked, ranks), StagingBuffer()
    some, turns = torch.rand(256, 256), []
    for step in range(saves + 1):
        dist.barrier()
        began_s = time.monotonic()
        writer.save(stage(step, division, {}, buffer))
        stall_s, steps = time.monotonic() - began_s, 0
        while writer.is_busy:
            some.mm(some)
            steps += 1
        durable_s = time.monotonic() - began_s
        assert not writer.is_broken, writer.failure_reason
        turns.append((stall_s, durable_s, (durable_s - stall_s) / max(1, steps)))
    dist.barrier()
    ranks.destroy()
    return {"track_s": track_s, "turns": turns[1:]}


def main() -> None:
    """Run as a rank."""
    warnings.simplefilter("ignore")
    arguments = json.loads(sys.argv[1])
    results = measure(arguments["size"], arguments["saves"], is_compared=arguments["is_compared"])
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
