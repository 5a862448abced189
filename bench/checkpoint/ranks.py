"""One rank of several that train alike (DDP over gloo) and save together: what it stages, and what it needs for it.

The process that started it knows from the server's log what each rank wrote.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from checkpoint.process_stats import forget_peak, peak_bytes, resident_bytes
from checkpoint.state import SHAPES

URL = "s3://bench/runs"


class Bag(nn.Module):
    """A model that is nothing but its parameters."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            values = torch.full(shape, 1 / math.prod(shape))
            self.register_parameter(name.replace(".", "_"), nn.Parameter(values))


def trained(size: str) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """A model and its optimizer after one step."""
    model = DistributedDataParallel(Bag(SHAPES[size].parameters()))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def ours(size: str, saves: int) -> dict[str, Any]:
    """Save as Holdfast does."""
    from holdfast_worker.checkpoint.host_memory import StagingBuffer
    from holdfast_worker.checkpoint.repository import CheckpointRepository
    from holdfast_worker.checkpoint.save_plan import SavePlanner
    from holdfast_worker.checkpoint.snapshot import stage
    from holdfast_worker.checkpoint.stateful import TrackedState
    from holdfast_worker.checkpoint.writer import AsyncWriter, WriterIdentity
    from holdfast_worker.distributed.process_group import ProcessGroup
    from holdfast_worker.storage import open_store
    from holdfast_worker.telemetry.reporter import Reporter
    from holdfast_worker.topology.identity import RankIdentity

    ranks = ProcessGroup.join(RankIdentity.read(os.environ))
    model, optimizer = trained(size)
    tracked, arena = TrackedState({"model": model, "optimizer": optimizer}), StagingBuffer()
    division = SavePlanner(tracked, ranks)
    archive = CheckpointRepository(open_store(URL, "job"))
    if ranks.rank == 0:
        archive.tokens.claim(1, "0" * 8, time.monotonic() + 60)
    saver = AsyncWriter(
        archive, WriterIdentity(ranks.rank, ranks.world_size, 1, "0" * 8), Reporter(None), keep=1
    )
    base_bytes, stalls_s = _ready(), []
    for step in range(saves):
        dist.barrier()
        began_s = time.monotonic()
        saver.save(stage(step, division, {}, arena))
        stalls_s.append(time.monotonic() - began_s)
        saver.wait(600)
        assert not saver.is_broken
    said = _said(arena.size, base_bytes, stalls_s)
    dist.barrier()
    ranks.destroy()
    return said


def theirs(size: str, saves: int) -> dict[str, Any]:
    """Save as DCP does at its best."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    from checkpoint.dcp import cached_stager, writer

    dist.init_process_group("gloo")
    model, optimizer = trained(size)
    stager = cached_stager()
    base_bytes, stalls_s = _ready(), []
    for step in range(saves):
        dist.barrier()
        began_s = time.monotonic()
        weights, moments = get_state_dict(model, optimizer)
        saved: Any = dcp.async_save(
            {"model": weights, "optimizer": moments},
            storage_writer=writer("s3torch", f"{URL}/{step}", 4),
            async_stager=stager,
        )
        stalls_s.append(time.monotonic() - began_s)
        saved.result()
    said = _said(stager.staged_bytes, base_bytes, stalls_s)
    dist.barrier()
    dist.destroy_process_group()
    return said


def _ready() -> int:
    """Memory before the first save."""
    forget_peak()
    return resident_bytes()


def _said(staged_bytes: int, base_bytes: int, stalls_s: list[float]) -> dict[str, Any]:
    extra_bytes = peak_bytes() - base_bytes
    return {"staged_bytes": staged_bytes, "extra_bytes": extra_bytes, "stall_s": stalls_s[1:]}


def main() -> None:
    """Be a rank."""
    warnings.simplefilter("ignore")
    asked = json.loads(sys.argv[1])
    save = ours if asked["contestant"] == "ours" else theirs
    print(json.dumps(save(asked["size"], asked["saves"])), flush=True)


if __name__ == "__main__":
    main()
