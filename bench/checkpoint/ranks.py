"""One of several DDP ranks (gloo) that save together: its staged bytes and memory.

The parent process reads the written bytes of each rank from the server's log.
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

from checkpoint.process_stats import peak_bytes, reset_peak, resident_bytes
from checkpoint.state import SHAPES

URL = "s3://bench/runs"


class ParameterBag(nn.Module):
    """A model that consists only of parameters."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            values = torch.full(shape, 1 / math.prod(shape))
            self.register_parameter(name.replace(".", "_"), nn.Parameter(values))


def trained(size: str) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """A model and its optimizer after one step."""
    model = DistributedDataParallel(ParameterBag(SHAPES[size].parameters()))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def save_with_holdfast(size: str, saves: int) -> dict[str, Any]:
    """Save with Holdfast."""
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
    tracked, buffer = TrackedState({"model": model, "optimizer": optimizer}), StagingBuffer()
    planner = SavePlanner(tracked, ranks)
    repository = CheckpointRepository(open_store(URL, "job", os.environ))
    if ranks.rank == 0:
        repository.tokens.claim(1, "0" * 8, time.monotonic() + 60)
    writer_ = AsyncWriter(
        repository, WriterIdentity(ranks.rank, ranks.world_size, 1, "0" * 8), Reporter(None), keep=1
    )
    base_bytes, stalls_s = _ready(), []
    for step in range(saves):
        dist.barrier()
        began_s = time.monotonic()
        writer_.save(stage(step, planner, {}, buffer))
        stalls_s.append(time.monotonic() - began_s)
        writer_.wait(600)
        assert not writer_.is_broken
    results = _results(buffer.size, base_bytes, stalls_s)
    dist.barrier()
    ranks.destroy()
    return results


def save_with_dcp(size: str, saves: int) -> dict[str, Any]:
    """Save with DCP and its fastest options."""
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
    results = _results(stager.staged_bytes, base_bytes, stalls_s)
    dist.barrier()
    dist.destroy_process_group()
    return results


def _ready() -> int:
    """Reset the peak of memory; return the memory before the first save."""
    reset_peak()
    return resident_bytes()


def _results(staged_bytes: int, base_bytes: int, stalls_s: list[float]) -> dict[str, Any]:
    extra_bytes = peak_bytes() - base_bytes
    return {"staged_bytes": staged_bytes, "extra_bytes": extra_bytes, "stall_s": stalls_s[1:]}


def main() -> None:
    """Run as a rank."""
    warnings.simplefilter("ignore")
    arguments = json.loads(sys.argv[1])
    save = save_with_holdfast if arguments["candidate"] == "ours" else save_with_dcp
    print(json.dumps(save(arguments["size"], arguments["saves"])), flush=True)


if __name__ == "__main__":
    main()
