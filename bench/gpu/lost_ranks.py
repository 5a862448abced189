"""Lost ranks and nodes of a training on GPUs: when it continues, and whether its weights are those of an undisturbed one.

The nodes are processes of this machine, with one rank each. They share its GPUs if there are too few. NCCL takes them for different
machines, and sums over the network. Exits with 77 without a GPU, and with 1 if weights differ.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from recovery.lost_ranks_nodes import NODES, Course, Moment, Nodes, NotRecovered, free_port

NO_GPU: Final = 77
"""The exit code with which test runners report a skipped test."""
STEPS: Final = 120
WARMUP_STEPS: Final = 20
"""Steps whose durations are not measured, as cuBLAS and DDP prepare in them."""
WAYS: Final = ("in_process", "restart")
"""Values of `HOLDFAST_RECOVERY`."""
MOMENTS: Final = (
    Moment(1, is_whole_node=False, after_steps=0.5),
    Moment(0, is_whole_node=False, after_steps=3.3),
    Moment(2, is_whole_node=True, after_steps=5.8),
)

SCRIPT: Final = """
import os, time
from pathlib import Path

marks = open(f"{os.environ['MARKS']}/{os.environ['NODE']}-{os.getpid()}", "a", buffering=1)

def mark(name, *values):
    print(name, time.time(), *values, file=marks)

mark("script")
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from holdfast_worker import Run
from holdfast_worker.checkpoint.checksums import state_dict_digest

WIDTH, DEPTH, BATCH, STEPS = (int(os.environ[name]) for name in ("WIDTH", "DEPTH", "BATCH", "STEPS"))
mark("imported")
run = Run.start(deterministic=True)
mark("started")
layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU()) for _ in range(DEPTH)]
model = run.wrap(nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(WIDTH, 1)))
mark("wrapped")
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda")
data = torch.randn(32 * BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, run.world_size, run.rank))
run.track(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
mark("state")
for x in run.steps(loader, total=STEPS):
    with torch.autocast("cuda", torch.float16):
        loss = model(x.to(run.device)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    mark("step", run.step + 1)
digest = state_dict_digest(model.state_dict())
Path(f"{os.environ['RESULTS']}/{run.rank}").write_text(f"{digest} {torch.cuda.max_memory_allocated()}")
"""


@dataclass(frozen=True, slots=True)
class Trained:
    """A training, with the loss of a rank or without."""

    digests: Sequence[str]
    """Of the weights of each rank."""
    peak_bytes: int
    """The most memory that the first rank has allocated on its GPU."""
    step_s: float
    """Median duration of its undisturbed steps."""
    new_step_s: float = 0.0
    """Time from the kill to the first new step of all nodes; 0 without a kill."""
    repeated_steps: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    """How long the phases from the kill to the new step took: each ends with its mark in the replaced rank."""


def main() -> int:
    """Train, kill, compare and print."""
    parser = argparse.ArgumentParser(prog="python -m gpu.lost_ranks", description=__doc__)
    parser.add_argument("--width", type=int, default=2048, help="size of each layer")
    parser.add_argument("--depth", type=int, default=4, help="number of layers")
    parser.add_argument("--batch", type=int, default=4096, help="samples of each rank and step")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    kinds = ("nothing", "rank", "node")
    parser.add_argument("--lose", nargs="+", choices=kinds, default=list(kinds))
    arguments = parser.parse_args()
    gpus = torch.cuda.device_count()
    if not gpus:
        print("no GPU here: nothing was measured")
        return NO_GPU
    size = {name: str(getattr(arguments, name.lower())) for name in ("WIDTH", "DEPTH", "BATCH")}
    print(f"{NODES} nodes on {gpus} {torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(
        f"{'':<12}{'lost':<16}{'step':>10}{'new step':>10}{'repeated':>10}{'memory':>10}  weights",
        flush=True,
    )
    expected: Sequence[str] = ()
    is_equal = True
    for way, moment in itertools.product(arguments.only, (None, *MOMENTS)):
        lost = _lost(moment)
        if lost.split()[0] not in arguments.lose:
            continue
        with tempfile.TemporaryDirectory() as home:
            try:
                trained = _train(Path(home), way, moment, gpus, size)
            except (NotRecovered, OSError) as problem:
                is_equal = False
                print(f"{way:<12}{lost:<16}FAILED\n{problem}", flush=True)
                continue
        expected = expected or trained.digests
        is_same = trained.digests == expected
        is_equal &= is_same
        row = f"{way:<12}{lost:<16}{trained.step_s * 1e3:>7.1f} ms{trained.new_step_s:>8.2f} s"
        row += f"{trained.repeated_steps:>10}{trained.peak_bytes / 1e6:>7.0f} MB"
        print(f"{row}  {'equal' if is_same else 'DIFFER'}", flush=True)
        if trained.phases:
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in trained.phases.items())
            print(f"{'':<12}seconds until {phases}", flush=True)
    return 0 if is_equal else 1


def _lost(moment: Moment | None) -> str:
    if moment is None:
        return "nothing"
    return f"{'node' if moment.is_whole_node else 'rank'} {moment.node}"


def _train(
    home: Path, way: str, moment: Moment | None, gpus: int, size: Mapping[str, str]
) -> Trained:
    nodes = Nodes(home)
    script = home / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    (home / "results").mkdir()
    command = [sys.executable, "-m", "holdfast_worker", "run", "--nproc-per-node", "1", str(script)]
    shared = {
        **size,
        "STEPS": str(STEPS),
        "RESULTS": str(home / "results"),
        "HOLDFAST_RECOVERY": way,
        "HOLDFAST_MASTER_PORT": str(free_port()),
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
    }

    def start(node: int, variables: Mapping[str, str]) -> None:
        own = {"CUDA_VISIBLE_DEVICES": str(node % gpus), "NCCL_HOSTID": f"node-{node}"}
        nodes.start(node, command, {**shared, **own, **variables})

    def replace() -> None:
        if moment is None or not moment.is_whole_node:
            return
        if way == "in_process":
            start(moment.node, {"HOLDFAST_NODE_START": "1"})
            return
        nodes.wait_for_ends()
        for node in range(NODES):
            start(node, {"HOLDFAST_ATTEMPT": "2", "HOLDFAST_EPOCH": "2"})

    try:
        for node in range(NODES):
            start(node, {})
        course = nodes.kill(moment, 0.05, replace) if moment else None
        _check_ends(nodes.wait_for_ends())
        results = [home / f"results/{rank}" for rank in range(NODES)]
        found = [result.read_text().split() for result in results]
        digests, peak_bytes = [digest for digest, _ in found], int(found[0][1])
        step_s = nodes.median_step_s(WARMUP_STEPS)
    except NotRecovered as problem:
        raise NotRecovered(f"{problem}\n{nodes.output(100)}") from None
    finally:
        nodes.end()
    if course is None:
        return Trained(digests, peak_bytes, step_s)
    at_s, whole_s = course.killed_s, course.all_nodes_at_s()
    assert whole_s, "all nodes train again"
    before = {(m.node, m.step) for m in course.marks if m.name == "step" and m.at_s <= at_s}
    again = {(m.node, m.step) for m in course.after("step", course.survivors)}
    repeated = len({step for _, step in before & again})
    return Trained(digests, peak_bytes, step_s, whole_s - at_s, repeated, _phases(course, whole_s))


def _phases(course: Course, whole_s: float) -> dict[str, float]:
    phases, from_s = {}, course.killed_s
    for name in ("script", "imported", "started", "wrapped", "state"):
        at_s = course.last_of_first(name, [course.moment.node])
        if at_s is not None:
            phases[name], from_s = at_s - from_s, at_s
    return {**phases, "step": whole_s - from_s}


def _check_ends(codes: Sequence[int]) -> None:
    if any(codes):
        raise NotRecovered(f"the nodes ended with the exit codes {codes}")


if __name__ == "__main__":
    sys.exit(main())
