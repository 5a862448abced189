"""Cost of a lost rank or node of three, for several ways to recover. See README.md."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from recovery.lost_ranks_launchers import (
    SKYPILOT,
    SKYPILOT_LABEL,
    SLURM,
    skypilot_losses,
    slurm_ways,
)
from recovery.lost_ranks_nodes import NODES, Moment, NotRecovered
from recovery.lost_ranks_plot import plot
from recovery.lost_ranks_run import PHASES, WAYS, Loss, Settings, Way
from recovery.lost_ranks_scripts import SAVE_EVERY

OUT = Path(__file__).parents[2] / "build" / "bench-lost-ranks"
OURS = "in_process"
"""The way with which the others are compared."""
INSTALL_TORCHFT = (
    "torchft is left out, as it cannot be imported: pip install torchft==0.2.0 installs it, "
    "and keeps an installed torch of version 2.7 or later"
)


class MeasuredWay(Protocol):
    """A way that is measured in this run."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...

    def measure(self, home: Path, moment: Moment, settings: Settings, /) -> Loss:
        """Lose a rank or a node, and wait until training continues."""
        ...


def main() -> None:
    """Kill, measure, print and plot."""
    parser = argparse.ArgumentParser(prog="python -m recovery.lost_ranks", description=__doc__)
    parser.add_argument("--lose", choices=("rank", "node"), default="rank", help="what is killed")
    parser.add_argument("--times", type=int, default=5, help="kills for each way")
    parser.add_argument("--price", type=float, default=30.0, help="dollars per node-hour")
    parser.add_argument("--step-ms", type=float, default=50.0, help="duration of a step")
    parser.add_argument("--width", type=int, default=256, help="hidden size of the model")
    parser.add_argument("--seed", type=int, default=0, help="selects the nodes and moments")
    names = [*(way.name for way in WAYS), *SLURM]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--out", type=Path, default=OUT, help="folder for figures and plot")
    parser.add_argument(
        "--skypilot",
        type=Path,
        metavar="FILE",
        help="adds what the test of node groups has measured with the real SkyPilot",
    )
    arguments = parser.parse_args()
    try:
        on_skypilot = skypilot_losses(arguments.skypilot) if arguments.skypilot else []
    except ValueError as problem:
        sys.exit(str(problem))
    is_whole_node = arguments.lose == "node"
    settings = Settings(step_s=arguments.step_ms / 1000, width=arguments.width)
    print(f"{os.cpu_count()} cores, load {load()} at the start", flush=True)
    chance = random.Random(arguments.seed)
    moments = [_moment(chance, is_whole_node=is_whole_node) for _ in range(arguments.times)]
    with slurm_ways(arguments.only, is_whole_node=is_whole_node) as on_slurm:
        ways: list[MeasuredWay] = [*_local_ways(arguments.only), *on_slurm]
        losses = _losses(ways, moments, settings)
    print(f"load {load()} at the end\n")
    labels = {way.name: way.label for way in ways}
    if on_skypilot:
        labels[SKYPILOT], losses[SKYPILOT] = SKYPILOT_LABEL, on_skypilot
    _print_results(labels, losses, arguments.price)
    _print_phases(labels, losses)
    arguments.out.mkdir(parents=True, exist_ok=True)
    raw = {name: [asdict(loss) for loss in some] for name, some in losses.items()}
    (arguments.out / "figures.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    title = f"From the kill of a {arguments.lose} to the next new step; medians of {arguments.times} kills"
    (arguments.out / "figures.svg").write_text(plot(title, labels, losses), encoding="utf-8")
    print(f"\nfigures and plot: {arguments.out}")


def _local_ways(names: Collection[str]) -> list[Way]:
    """The ways with these names that this machine can run."""
    ways = [way for way in WAYS if way.name in names]
    if importlib.util.find_spec("torchft") is None and any("torchft" in way.name for way in ways):
        print(INSTALL_TORCHFT, flush=True)
        ways = [way for way in ways if "torchft" not in way.name]
    return ways


def _moment(chance: random.Random, *, is_whole_node: bool) -> Moment:
    """A random moment. The first node has the rendezvous, so it is never lost as a whole."""
    node = chance.randrange(1 if is_whole_node else 0, NODES)
    return Moment(node, is_whole_node, chance.uniform(0, SAVE_EVERY))


def _losses(
    ways: Sequence[MeasuredWay], moments: Sequence[Moment], settings: Settings
) -> dict[str, list[Loss]]:
    """Measure in turns, as the machine may get busier; all ways of a turn lose the same node."""
    losses: dict[str, list[Loss]] = {way.name: [] for way in ways}
    for number, moment in enumerate(moments):
        for way in ways:
            print(f"\r{number + 1} of {len(moments)}: {way.label:<45}", end="", file=sys.stderr)
            with tempfile.TemporaryDirectory() as home:
                try:
                    losses[way.name].append(way.measure(Path(home), moment, settings))
                except NotRecovered as problem:
                    print(f"\n{way.label}, node {moment.node}: {problem}", file=sys.stderr)
    print(f"\r{'':<60}\r", end="", file=sys.stderr)
    return losses


def _print_results(
    labels: Mapping[str, str], losses: Mapping[str, Sequence[Loss]], price: float
) -> None:
    print(f"{'':<36}{'new step':>18}{'all nodes':>18}{'repeated':>10}{'dropped':>9}", end="")
    print(f"{'dollars':>10}{'ratio':>7}{'kills':>7}")
    print(f"{'':<36}{'median':>9}{'p95':>9}{'median':>9}{'p95':>9}{'steps':>10}{'batches':>9}")
    ours = losses.get(OURS)
    reference = statistics.median(loss.new_step_s for loss in ours) if ours else None
    for name, label in labels.items():
        some = losses[name]
        if not some:
            print(f"{label:<36}{'never recovered':>18}")
            continue
        new, whole = [loss.new_step_s for loss in some], [loss.all_nodes_s for loss in some]
        dollars = statistics.median(loss.lost_node_s for loss in some) * price / 3600
        row = f"{label:<36}{statistics.median(new):>8.2f}s{p95(new):>8.2f}s"
        row += f"{statistics.median(whole):>8.2f}s{p95(whole):>8.2f}s"
        row += f"{_median([loss.repeated_steps for loss in some]):>10}"
        row += f"{_median([loss.dropped_batches for loss in some]):>9}{dollars:>10.4f}"
        print(row + (f"{statistics.median(new) / reference:>7.1f}" if reference else ""), end="")
        print(f"{len(some):>7}")
    for name, label in labels.items():
        if moved := [loss.moved_s for loss in losses[name] if loss.moved_s is not None]:
            print(
                f"{label}: ranks waited {statistics.median(moved):.1f} s (p95 {p95(moved):.1f} s) for others to move to the replacement"
            )
        if count := sum(loss.has_fallen_back for loss in losses[name]):
            print(f"{label}: all ranks started again after {count} of the kills")


def _median(values: Sequence[int | None]) -> str:
    """The median; `-` if they are not measured."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):g}" if known else "-"


def _print_phases(labels: Mapping[str, str], losses: Mapping[str, Sequence[Loss]]) -> None:
    print("\nmedians of the phases in seconds; `-`: not observed, part of the next phase")
    print(f"{'':<36}" + "".join(f"{phase:>14}" for phase in PHASES))
    for name, label in labels.items():
        some = [loss.phases for loss in losses[name] if not loss.has_fallen_back]
        if not some:
            continue
        cells = []
        for phase in PHASES:
            known = [phases[phase] for phases in some if phase in phases]
            cells.append(f"{statistics.median(known):>14.3f}" if known else f"{'-':>14}")
        print(f"{label:<36}" + "".join(cells))


def p95(values: Sequence[float]) -> float:
    """The 95th percentile by the nearest rank: the highest value of fewer than 20."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def load() -> str:
    """Load averages of this machine over 1, 5 and 15 minutes."""
    return ", ".join(f"{each:.1f}" for each in os.getloadavg())


if __name__ == "__main__":
    main()
