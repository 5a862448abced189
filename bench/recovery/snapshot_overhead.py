"""Time that snapshots of sharded state in memory add to steps: they are taken in every other block of one training. See README.md."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from recovery.lost_ranks_nodes import Nodes, NotRecovered, free_port
from recovery.paired_blocks import Average, Difference, blocks_of, is_on

NODES: Final = 2
WIDTH, DEPTH, BATCH = 768, 6, 64
WARMUP_BLOCKS: Final = 2
"""Blocks that are not measured, an even number. FSDP2 and the optimizer prepare in the first, and a snapshot reserves memory in the second.
A lower value measures that; a higher value takes longer."""
START_S: Final = 120.0
"""Time for the start of the ranks. A lower value gives up on a busy machine; a higher value waits longer for one that hangs."""

SCRIPT: Final = """
import itertools, json, os, re, time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler

from holdfast_worker import Run
from holdfast_worker.checkpoint.checkpointer import Checkpointer
from recovery.paired_blocks import is_on

torch.set_num_threads(1)
WIDTH, DEPTH, BATCH = (int(os.environ[name]) for name in ("WIDTH", "DEPTH", "BATCH"))
SECONDS, RESULT = float(os.environ["SECONDS"]), Path(os.environ["RESULT"])
STEPS = 10_000
PIDS = "self", os.environ["HOLDFAST_WRAPPER"]  # The wrapper holds the copies of snapshots.
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
run = Run.start()
layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]
model = run.wrap(torch.nn.Sequential(*layers, torch.nn.Dropout(0.1)), shard=True)
optimizer = torch.optim.AdamW(model.parameters())
# All rows share the memory of one.
data = torch.ones(1, WIDTH).expand(STEPS * BATCH * run.world_size, WIDTH)
sampler = DistributedSampler(data, run.world_size, run.rank, shuffle=False)
loader = DataLoader(data, BATCH, sampler=sampler)
run.track(model=model, optimizer=optimizer)

wall_s, cpu_s, blocks, snapshots, peaks = [], [], [], [], []
block, block_since_s, own_is_due, save_in_memory = 0, None, Checkpointer.is_snapshot_due, Checkpointer.save_in_memory

def is_snapshot_due(self, step):
    # In each boundary of rank 0, which alone decides. A block lasts for the interval between two snapshots, and so has one.
    global block, block_since_s
    now_s = time.monotonic()
    if block_since_s is None:
        block_since_s = now_s
    elif now_s - block_since_s >= self.memory.schedule.interval_s:
        block, block_since_s = block + 1, now_s
        peaks.append(peak_bytes())
    blocks.append(block)
    return is_on(block) and own_is_due(self, step)

def save_counted(self, *args):
    snapshots.append(block)
    return save_in_memory(self, *args)

Checkpointer.is_snapshot_due, Checkpointer.save_in_memory = is_snapshot_due, save_counted

def cpu_of_wrapper_s():
    fields = Path(f"/proc/{PIDS[1]}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S

def peak_bytes():
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in PIDS]
    return 1024 * sum(int(re.findall(r"VmHWM:\\s*(\\d+)", text)[0]) for text in texts)

def local_bytes(tensors):
    return sum(getattr(tensor, "_local_tensor", tensor).nbytes for tensor in tensors)

for x in run.steps(loader, total=10**6):
    wall_s.append(time.perf_counter())
    cpu_s.append(time.process_time() + cpu_of_wrapper_s())
    if run.rank == 0 and wall_s[-1] - wall_s[0] > SECONDS and not RESULT.exists():
        parameters = local_bytes(model.parameters())
        state = parameters + local_bytes(t for s in optimizer.state.values() for t in s.values())
        result = {
            "wall_s": [end - start for start, end in itertools.pairwise(wall_s)],
            "cpu_s": [end - start for start, end in itertools.pairwise(cpu_s)],
            "blocks": blocks[: len(wall_s) - 1],
            "snapshots": len(snapshots),
            "peak_bytes": peaks,
            "state_bytes": state,
        }
        draft = RESULT.with_suffix(".draft")
        draft.write_text(json.dumps(result))
        draft.replace(RESULT)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True, slots=True)
class Alternation:
    """Figures of rank 0."""

    wall_s: Sequence[float]
    """Durations of the steps."""
    cpu_s: Sequence[float]
    """CPU time of the rank and of its wrapper in each step."""
    blocks: Sequence[int]
    """The number of each step's block, from 0."""
    snapshots: int
    peak_bytes: Sequence[int]
    """The most memory that rank and wrapper have had until the end of each block."""
    state_bytes: int
    """Size of the rank's part of model and optimizer: of one snapshot."""


def train(seconds: float) -> Alternation:
    """Train a sharded model on two nodes of this machine.

    Raises:
        NotRecovered: the ranks did not train.
    """
    with tempfile.TemporaryDirectory() as home:
        nodes, script, result = Nodes(Path(home)), Path(home, "script.py"), Path(home, "result")
        script.write_text(SCRIPT, encoding="utf-8")
        shared = {
            "HOLDFAST_MEMORY": "auto",
            "HOLDFAST_EVERY": "1000000 steps",  # A checkpoint would change some steps.
            "HOLDFAST_MASTER_PORT": str(free_port()),
            "SKYPILOT_NUM_NODES": str(NODES),
            "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * NODES),
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            "SECONDS": str(seconds),
            "RESULT": str(result),
            "WIDTH": str(WIDTH),
            "DEPTH": str(DEPTH),
            "BATCH": str(BATCH),
        }
        command = [sys.executable, "-m", "holdfast_worker", "run", "--nproc-per-node", "1"]
        try:
            for node in range(NODES):
                nodes.start(node, [*command, str(script)], shared)
            nodes.wait_for(result, START_S + seconds)
            return Alternation(**json.loads(result.read_text(encoding="utf-8")))
        finally:
            nodes.end()


def differences(found: Alternation) -> dict[str, Difference]:
    """What snapshots add to steps, by the name of the figure.

    Raises:
        ValueError: the training was too short.
    """
    # The last block may be incomplete.
    complete = [WARMUP_BLOCKS <= number < found.blocks[-1] for number in found.blocks]
    figures: Mapping[str, tuple[Sequence[float], Average]] = {
        "median step": (found.wall_s, statistics.median),
        "mean step": (found.wall_s, statistics.fmean),
        "CPU time, mean": (found.cpu_s, statistics.fmean),
    }
    chosen = [number for number, is_whole in zip(found.blocks, complete, strict=True) if is_whole]
    return {
        name: Difference.of(
            blocks_of(
                [v for v, is_whole in zip(values, complete, strict=True) if is_whole], chosen
            ),
            average,
        )
        for name, (values, average) in figures.items()
    }


def measure(minutes: float, out: Path | None) -> None:
    """Train, compare and print."""
    try:
        found = train(minutes * 60)
        if out:
            out.write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
        shares = differences(found)
    except (NotRecovered, ValueError) as problem:
        sys.exit(f"sharded: {problem}")
    cpu_s = [
        cpu for cpu, number in zip(found.cpu_s, found.blocks, strict=True) if not is_on(number)
    ]
    wall_s = [s for s, number in zip(found.wall_s, found.blocks, strict=True) if not is_on(number)]
    on = sum(is_on(number) for number in {*found.blocks})
    print(f"sharded: {found.state_bytes / 1e6:.1f} MB of model and optimizer on each rank")
    print(
        f"{len(found.wall_s)} steps in {found.blocks[-1] + 1} blocks; {found.snapshots} snapshots in {on} of them"
    )
    print(
        f"without snapshots: median step {statistics.median(wall_s) * 1e3:.2f} ms, "
        f"CPU time of rank and wrapper {statistics.fmean(cpu_s) * 1e3:.2f} ms in the mean step"
    )
    for name, share in shares.items():
        print(f"added to the {name}: {share}")
    added_bytes = found.peak_bytes[-1] - found.peak_bytes[0]
    snapshots = added_bytes / found.state_bytes
    print(f"added memory: {added_bytes / 1e6:.1f} MB, {snapshots:.2f} of model and optimizer\n")
