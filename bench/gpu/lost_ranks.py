"""Lost ranks and nodes of a training on GPUs: when it continues, and whether its weights are those of an undisturbed one.

The nodes are processes of this machine, with one rank each. They share its GPUs if there are too few. NCCL takes them for different
machines, and sums over the network. Exits with 77 without a GPU, and with 1 if weights differ. With gloo, the same runs without a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from recovery.lost_ranks_nodes import NODES, Course, Moment, Nodes, NotRecovered, free_port
from recovery.lost_ranks_run import RESERVE_S
from worker.support.report_server import ReportServer

NO_GPU: Final = 77
"""The exit code with which test runners report a skipped test."""
STEPS: Final = 120
LONG_STEPS: Final = 600
"""Steps of runs whose nodes need time before the loss, to prepare for it, and after it, until ranks have moved.
A lower value ends training before that; a higher value takes longer."""
STEP_S: Final = 0.05
"""Shortest duration of a step. A lower value ends training on a fast GPU before a node is replaced."""
WARMUP_STEPS: Final = 20
"""Steps whose durations are not measured, as cuBLAS and DDP prepare in them."""
GROUPED: Final = "groups"
"""Each node is a group of its own, and they meet through a service."""
WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "in_process": {"HOLDFAST_RECOVERY": "in_process"},
    "restart": {"HOLDFAST_RECOVERY": "restart"},
    "elastic": {"HOLDFAST_RECOVERY": "in_process", "HOLDFAST_MIN_NODES": "1"},
    GROUPED: {"HOLDFAST_RECOVERY": "in_process"},
}
"""Ways to recover, and their variables."""
OF_NODES: Final = ("elastic", GROUPED)
"""Ways that differ from `in_process` only if a node is lost. Their runs are long."""
MOMENTS: Final = (
    Moment(1, is_whole_node=False, after_steps=0.5),
    Moment(0, is_whole_node=False, after_steps=3.3),
    Moment(2, is_whole_node=True, after_steps=5.8),
)

SCRIPT: Final = """
import os, time
from pathlib import Path

# Over all groups; also of ranks whose node is missing.
marks = open(f"{os.environ['MARKS']}/{os.environ['GROUP_RANK']}-{os.getpid()}", "a", buffering=1)

def mark(name, *values):
    print(name, time.time(), *values, file=marks)

mark("script")
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from holdfast_worker import Run
from holdfast_worker.checkpoint.checksums import state_dict_digest

WIDTH, DEPTH, BATCH, STEPS = (int(os.environ[name]) for name in ("WIDTH", "DEPTH", "BATCH", "STEPS"))
STEP_S = float(os.environ["STEP_S"])
mark("imported")
run = Run.start(deterministic=True)
mark("started")
layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU()) for _ in range(DEPTH)]
model = run.wrap(nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(WIDTH, 1)))
mark("wrapped")
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
has_gpu = run.device.type == "cuda"
scaler = torch.amp.GradScaler(run.device.type)
dtype = torch.float16 if has_gpu else torch.bfloat16
data = torch.randn(32 * BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, run.world_size, run.rank))
run.track(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
mark("state")
for x in run.steps(loader, total=STEPS):
    until_s = time.monotonic() + STEP_S
    with torch.autocast(run.device.type, dtype):
        loss = model(x.to(run.device)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    optimizer.zero_grad()
    if has_gpu:
        torch.cuda.synchronize()
    time.sleep(max(0.0, until_s - time.monotonic()))
    mark("step", run.step + 1)
digest = state_dict_digest(model.state_dict())
peak_bytes = torch.cuda.max_memory_allocated() if has_gpu else 0
Path(f"{os.environ['RESULTS']}/{run.rank}").write_text(f"{digest} {peak_bytes}")
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
    parser.add_argument("--only", nargs="+", choices=tuple(WAYS), default=list(WAYS))
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    kinds = ("nothing", "rank", "node")
    parser.add_argument("--lose", nargs="+", choices=kinds, default=list(kinds))
    arguments = parser.parse_args()
    gpus = torch.cuda.device_count() if arguments.backend == "nccl" else 0
    if arguments.backend == "nccl" and not gpus:
        print("no GPU here: nothing was measured; --backend gloo runs the same without one")
        return NO_GPU
    size = {name: str(getattr(arguments, name.lower())) for name in ("WIDTH", "DEPTH", "BATCH")}
    devices = f"{gpus} {torch.cuda.get_device_name()}" if gpus else "CPUs, with gloo"
    print(f"{NODES} nodes on {devices}, torch {torch.__version__}")
    print(
        f"{'':<12}{'lost':<16}{'step':>10}{'new step':>10}{'repeated':>10}{'memory':>10}  weights",
        flush=True,
    )
    expected: dict[int, Sequence[str]] = {}
    is_equal = True
    for way, moment in itertools.product(arguments.only, (None, *MOMENTS)):
        lost = _lost(moment)
        if lost.split()[0] not in arguments.lose or (way in OF_NODES and "rank" in lost):
            continue
        steps = LONG_STEPS if way in OF_NODES else STEPS
        with tempfile.TemporaryDirectory() as home:
            try:
                trained = _train(Path(home), way, moment, gpus, {**size, "STEPS": str(steps)})
            except (NotRecovered, OSError) as problem:
                is_equal = False
                print(f"{way:<12}{lost:<16}FAILED\n{problem}", flush=True)
                continue
        is_same = trained.digests == expected.setdefault(steps, trained.digests)
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
    """Train on three nodes, and lose a rank or a node.

    Raises:
        NotRecovered: training did not start, continue or end.
    """
    nodes = Nodes(home)
    (home / "results").mkdir()
    is_moving = way == "elastic" and moment is not None
    with ExitStack() as closing:
        closing.callback(nodes.end)
        start = _starter(nodes, way, gpus, size, closing)
        try:
            for node in range(NODES):
                start(node, {})
            course = moment and nodes.kill(
                moment,
                STEP_S,
                lambda: _replace(nodes, way, moment, start),
                prepares_s=RESERVE_S if is_moving else 0.0,
                moves=is_moving,
            )
            _check_ends(nodes.wait_for_ends())
            results = [home / f"results/{rank}" for rank in range(NODES)]
            found = [result.read_text().split() for result in results]
            digests, peak_bytes = [digest for digest, _ in found], int(found[0][1])
            step_s = nodes.median_step_s(WARMUP_STEPS)
        except NotRecovered as problem:
            raise NotRecovered(f"{problem}\n{nodes.output(100)}") from None
    if course is None:
        return Trained(digests, peak_bytes, step_s)
    at_s, whole_s = course.killed_s, course.all_nodes_at_s()
    assert whole_s, "all nodes train again"
    before = {(m.node, m.step) for m in course.marks if m.name == "step" and m.at_s <= at_s}
    again = {(m.node, m.step) for m in course.after("step", course.survivors)}
    repeated = len({step for _, step in before & again})
    return Trained(digests, peak_bytes, step_s, whole_s - at_s, repeated, _phases(course, whole_s))


def _starter(
    nodes: Nodes, way: str, gpus: int, size: Mapping[str, str], closing: ExitStack
) -> Callable[[int, Mapping[str, str]], None]:
    """A function that starts a node, with additional variables; `closing` ends what the nodes need."""
    script = nodes.home / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "holdfast_worker", "run", "--nproc-per-node", "1", str(script)]
    shared = {
        **size,
        **WAYS[way],
        "STEP_S": str(STEP_S),
        "RESULTS": str(nodes.home / "results"),
        "HOLDFAST_MASTER_PORT": str(free_port()),
        "SKYPILOT_NUM_GPUS_PER_NODE": "1" if gpus else "0",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
    }
    service_port = free_port()
    if way == GROUPED:
        closing.enter_context(ReportServer().opened(service_port))
    starts = itertools.count()

    def start(node: int, variables: Mapping[str, str]) -> None:
        gpu = {"CUDA_VISIBLE_DEVICES": str(node % gpus)} if gpus else {}
        group: Mapping[str, str | None] = {}
        if way == GROUPED:
            group = _group(nodes.home / f"machine-{next(starts)}", node, service_port)
        own = {**gpu, "NCCL_HOSTID": f"node-{node}"}
        nodes.start(node, command, {**shared, **own, **group, **variables})

    return start


def _group(machine: Path, node: int, service_port: int) -> Mapping[str, str | None]:
    """Variables of a node that is a group of its own, as SkyPilot sets them on a new machine; None: absent."""
    return {
        **dict.fromkeys(
            f"HOLDFAST_{name}" for name in ("ATTEMPT", "EPOCH", "RUN_DIR", "NODE_START")
        ),
        "HOME": str(machine),
        "HOLDFAST_URL": f"http://127.0.0.1:{service_port}",
        "HOLDFAST_TOKEN": "bench",
        "HOLDFAST_GROUP": f"group-{node}",
        "HOLDFAST_FIRST_NODE": str(node),
        "HOLDFAST_TOTAL_NODES": str(NODES),
        "SKYPILOT_INTERNAL_JOB_ID": "1",
        "SKYPILOT_MANAGED_JOB_ID": str(7 + node),
        "SKYPILOT_CLUSTER_INFO": '{"cloud": "None"}',
        "SKYPILOT_NUM_NODES": "1",
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NODE_IPS": "127.0.0.1",
    }


def _replace(
    nodes: Nodes, way: str, moment: Moment, start: Callable[[int, Mapping[str, str]], None]
) -> None:
    """Start another node in the place of a lost one, or the next attempt."""
    if not moment.is_whole_node:
        return
    if way != "restart":
        start(moment.node, {} if way == GROUPED else {"HOLDFAST_NODE_START": "1"})
        return
    nodes.wait_for_ends()
    for node in range(NODES):
        start(node, {"HOLDFAST_ATTEMPT": "2", "HOLDFAST_EPOCH": "2"})


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
