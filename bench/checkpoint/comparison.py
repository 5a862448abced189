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
    """The same without a comparison between ranks."""


def measure(size: str, saves: int, *, is_compared: bool) -> dict[str, Any]:
    """Seconds of `track`, and of each save: stall, until it is durable, and a step beside it."""
    ranks = ProcessGroup.join(RankIdentity.read(os.environ))
    model, optimizer = trained(size)
    average = {name: torch.ones(shape) for name, shape in SHAPES[size].parameters().items()}
    extra = Weights(average) if is_compared else Unchecked(average)
    tracked = TrackedState({"model": model, "optimizer": optimizer, "average": extra})
    began_s = time.monotonic()
    check_consistency(tracked, ranks)
    track_s = time.monotonic() - began_s
    archive = CheckpointRepository(open_store(URL, "job"))
    if ranks.rank == 0:
        archive.tokens.claim(1, "0" * 8, time.monotonic() + 60)
    placement = WriterIdentity(ranks.rank, ranks.world_size, 1, "0" * 8)
    saver = AsyncWriter(archive, placement, Reporter(None), keep=1)
    division, arena = SavePlanner(tracked, ranks), StagingBuffer()
    some, turns = torch.rand(256, 256), []
    for step in range(saves + 1):
        dist.barrier()
        began_s = time.monotonic()
        saver.save(stage(step, division, {}, arena))
        stall_s, steps = time.monotonic() - began_s, 0
        while saver.is_busy:
            some.mm(some)
            steps += 1
        durable_s = time.monotonic() - began_s
        assert not saver.is_broken, saver.failure_reason
        turns.append((stall_s, durable_s, (durable_s - stall_s) / max(1, steps)))
    dist.barrier()
    ranks.destroy()
    return {"track_s": track_s, "turns": turns[1:]}


def main() -> None:
    """Be a rank."""
    warnings.simplefilter("ignore")
    asked = json.loads(sys.argv[1])
    said = measure(asked["size"], asked["saves"], is_compared=asked["is_compared"])
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
