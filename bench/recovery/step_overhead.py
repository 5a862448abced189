"""Time and memory that recovery adds to steps in which no rank is lost. See README.md."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from recovery.lost_ranks import load, p95
from recovery.lost_ranks_nodes import Nodes, free_port
from recovery.snapshot_overhead import measure

NODES: Final = 2
WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "restart": {"HOLDFAST_RECOVERY": "restart", "HOLDFAST_MEMORY": "off"},
    "in_process": {"HOLDFAST_RECOVERY": "in_process", "HOLDFAST_MEMORY": "off"},
}
"""Variables of each way to recover; the first one is the reference."""
SHARDED: Final = "sharded"
"""The model of `snapshot_overhead.py`."""
NO_SAVES: Final = "1000000 steps"
"""A checkpoint would change the peak of memory and the duration of some steps."""
WARMUP_STEPS: Final = 20
"""Steps that are not measured. DDP arranges its buckets again, and the optimizer creates its state.
A lower value measures these steps; a higher value takes longer."""
TIMEOUT_S: Final = 600.0
"""Time for one training. A lower value gives up on a busy machine; a higher value waits longer for one that hangs."""

SCRIPT: Final = """
import json, os, re, time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler

from holdfast_worker import Run

torch.set_num_threads(1)
WIDTH, DEPTH, BATCH, STEPS = (int(os.environ[name]) for name in ("WIDTH", "DEPTH", "BATCH", "STEPS"))
run = Run.start()
layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]
model = run.wrap(torch.nn.Sequential(*layers, torch.nn.Dropout(0.1)))
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
# All rows share the memory of one. A pass is longer than the training, so that all steps do the same work.
data = torch.ones(1, WIDTH).expand(2 * STEPS * BATCH * run.world_size, WIDTH)
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, run.world_size, run.rank))
run.track(model=model, optimizer=optimizer, scheduler=scheduler)
wall_s, cpu_s = [], []
for x in run.steps(loader, total=STEPS):
    wall_s.append(time.perf_counter())
    cpu_s.append(time.process_time())
    if len(wall_s) == STEPS:  # Before the last checkpoint, which would be part of the peak.
        parameters = sum(p.nbytes for p in model.parameters())
        moments = sum(t.nbytes for s in optimizer.state.values() for t in s.values())
        # The wrapper holds the copies of snapshots.
        status = [Path(f"/proc/{pid}/status").read_text() for pid in ("self", os.environ["HOLDFAST_WRAPPER"])]
        peak_kb = sum(int(re.findall(r"VmHWM:\\s*(\\d+)", text)[0]) for text in status)
        result = {
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "peak_bytes": 1024 * peak_kb,
            "parameter_bytes": parameters,
            "state_bytes": parameters + moments,
        }
        Path(os.environ["RESULT"]).write_text(json.dumps(result))
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
"""


@dataclass(frozen=True, slots=True)
class Size:
    """A model of equal layers, and the work of one step."""

    width: int
    depth: int
    batch: int
    steps: int
    """Measured steps of each training."""


SIZES: Final = {
    "small": Size(width=256, depth=2, batch=256, steps=400),
    "large": Size(width=1024, depth=12, batch=16, steps=60),
}


@dataclass(frozen=True, slots=True)
class Training:
    """The figures of one rank."""

    wall_s: Sequence[float]
    """Durations of the steps."""
    cpu_s: Sequence[float]
    """CPU time of all threads of the rank in each step."""
    peak_bytes: int
    """The most memory that the rank and its wrapper have had."""
    parameter_bytes: int
    """Size of the rank's parameters."""
    state_bytes: int
    """Size of the rank's part of model and optimizer: of one snapshot."""


def main() -> None:
    """Train, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m recovery.step_overhead", description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="trainings of each kind")
    models = (*SIZES, SHARDED)
    parser.add_argument("--only", nargs="+", choices=models, default=list(models))
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    parser.add_argument(
        "--minutes", type=float, default=4.5, help=f"duration of the training of `{SHARDED}`"
    )
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {load()} at the start", flush=True)
    if SHARDED in arguments.only:
        out: Path | None = arguments.out
        measure(arguments.minutes, out and out.with_stem(f"{out.stem}-{SHARDED}"))
    sizes = [size for size in arguments.only if size in SIZES]
    found = _measure_all(sizes, arguments.times)
    print(f"load {load()} at the end\n")
    if arguments.out and found:
        figures = {
            size: {way: [asdict(one) for one in all_] for way, all_ in ways.items()}
            for size, ways in found.items()
        }
        arguments.out.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    for size, ways in found.items():
        _print_results(size, ways)


Results = Mapping[str, Sequence[Training]]
"""Trainings by way, in the order in which they were made."""


def _measure_all(sizes: Sequence[str], times: int) -> dict[str, Results]:
    """Train in turns, as the machine may get busier, and each way first every other time."""
    found: dict[str, dict[str, list[Training]]] = {s: {way: [] for way in WAYS} for s in sizes}
    for number in range(times):
        for size in sizes:
            for way in WAYS if number % 2 else reversed(WAYS):
                progress = f"{number + 1} of {times}: {size}, {way}"
                print(f"\r{progress:<40}", end="", file=sys.stderr)
                with tempfile.TemporaryDirectory() as home:
                    found[size][way].append(_train(Path(home), SIZES[size], way))
    print(f"\r{'':<40}\r", end="", file=sys.stderr)
    return dict(found)


def _train(home: Path, size: Size, way: str) -> Training:
    """Train on two nodes of this machine; return the figures of rank 0."""
    nodes = Nodes(home)
    script = home / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    shared = {
        **WAYS[way],
        "HOLDFAST_EVERY": NO_SAVES,
        "HOLDFAST_MASTER_PORT": str(free_port()),
        "SKYPILOT_NUM_NODES": str(NODES),
        "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * NODES),
        "WIDTH": str(size.width),
        "DEPTH": str(size.depth),
        "BATCH": str(size.batch),
        "STEPS": str(WARMUP_STEPS + size.steps),
    }
    command = [sys.executable, "-m", "holdfast_worker", "run", "--nproc-per-node", "1", str(script)]
    try:
        for node in range(NODES):
            nodes.start(node, command, {**shared, "RESULT": str(home / f"result-{node}")})
        nodes.wait_for_ends(TIMEOUT_S)
        result = home / "result-0"
        if not result.exists():
            sys.exit(f"the ranks did not train:\n{nodes.output()}")
        raw = json.loads(result.read_text(encoding="utf-8"))
    finally:
        nodes.end()
    for name in ("wall_s", "cpu_s"):
        ends = raw[name][WARMUP_STEPS - 1 :]
        raw[name] = [end - start for start, end in itertools.pairwise(ends)]
    return Training(**raw)


def _print_results(size: str, ways: Results) -> None:
    first = next(iter(ways.values()))[0]
    parameters, state = first.parameter_bytes / 1e6, first.state_bytes / 1e6
    print(f"{size}: {parameters:.1f} MB of parameters, {state:.1f} MB of model and optimizer")
    print(f"{'':<14}{'median':>12}{'p95':>12}{'CPU':>12}{'peak memory':>15}")
    for way, trainings in ways.items():
        wall = [s for each in trainings for s in each.wall_s]
        cpu = statistics.median(s for each in trainings for s in each.cpu_s)
        peak = statistics.median(each.peak_bytes for each in trainings)
        row = f"{way:<14}{_ms(statistics.median(wall))}{_ms(p95(wall))}{_ms(cpu)}"
        print(f"{row}{peak / 1e6:>12.1f} MB")
    added_s, share = _added(ways, "wall_s")
    mean_s, mean_share = _added(ways, "wall_s", statistics.fmean)
    cpu_s, cpu_share = _added(ways, "cpu_s", statistics.fmean)
    added_bytes = statistics.median(
        one.peak_bytes - other.peak_bytes for other, one in zip(*ways.values(), strict=True)
    )
    print(f"added to the median step: {added_s * 1e6:.0f} us, {share:.1%}")
    print(f"added to the mean step: {mean_s * 1e6:.0f} us, {mean_share:.1%}")
    print(f"added CPU time, mean: {cpu_s * 1e6:.0f} us, {cpu_share:.1%}")
    snapshots = added_bytes / first.state_bytes
    print(f"added memory: {added_bytes / 1e6:.1f} MB, {snapshots:.2f} of model and optimizer\n")


def _added(
    ways: Results, name: str, average: Callable[[Sequence[float]], float] = statistics.median
) -> tuple[float, float]:
    """What an average step takes longer, and as a share: the median over pairs of trainings."""
    pairs = [
        (average(getattr(one, name)), average(getattr(other, name)))
        for one, other in zip(*ways.values(), strict=True)
    ]
    return (
        statistics.median(with_ - without for without, with_ in pairs),
        statistics.median(with_ / without - 1 for without, with_ in pairs),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:>9.2f} ms"


if __name__ == "__main__":
    main()
