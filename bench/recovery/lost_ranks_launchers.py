"""Rows of launchers for `lost_ranks.py`: a real Slurm of this machine, and what a test with the real SkyPilot has written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local_slurm import NotPossible, SlurmCluster, start_cluster
from support.loss_breakdown import LossBreakdown, read_breakdowns

from recovery.lost_ranks_nodes import NODES, Moment, NotRecovered
from recovery.lost_ranks_run import Loss, Settings

SLURM: Final[Mapping[str, str]] = {
    "slurm": "Slurm, Holdfast, to the program",
    "slurm-plain": "Slurm, batch job, to the program",
}
"""Names and labels of the ways with Slurm. The program of `slurm/requeue.py` trains nothing."""
SKYPILOT: Final = "skypilot"
SKYPILOT_LABEL: Final = "SkyPilot, another node group"


@dataclass(frozen=True, slots=True)
class SlurmWay:
    """A job of Slurm, one of whose nodes loses its power."""

    name: str
    label: str
    run: Callable[[], Loss]

    def measure(self, _home: Path, _moment: Moment, _settings: Settings) -> Loss:
        """Cut the power of the last node, and wait until the program runs on all nodes again.

        Raises:
            NotRecovered: it did not run in time.
        """
        return self.run()


@contextmanager
def slurm_ways(names: Collection[str], *, is_whole_node: bool) -> Iterator[list[SlurmWay]]:
    """The ways with these names on a running cluster; without them, a sentence says why."""
    wanted = {name: label for name, label in SLURM.items() if name in names}
    with ExitStack() as closing:
        cluster = None
        if wanted and is_whole_node:
            try:
                cluster = closing.enter_context(start_cluster())
            except NotPossible as reason:
                print(f"Slurm is left out: {reason}", flush=True)
        elif wanted:
            print("Slurm is left out: its jobs lose whole nodes, with --lose node", flush=True)
        ways = cluster and [SlurmWay(*way, _requeues(cluster, way[0])) for way in wanted.items()]
        yield ways or []


def _requeues(cluster: SlurmCluster, name: str) -> Callable[[], Loss]:
    # It imports the service, which the other ways do not need.
    from slurm import requeue

    start = requeue.ours if name == "slurm" else requeue.plain

    def run() -> Loss:
        try:
            found = requeue.measure(cluster, requeue.POWER_CUT, start, NODES)
        except requeue.NeverBack as problem:
            cluster.settle()
            raise NotRecovered(str(problem)) from None
        phases = {
            "detect": found.left_s - found.disrupted_s,
            "nodes": found.placed_s - found.left_s,
            "processes": found.begun_s - found.placed_s,
        }
        return _loss(found.begun_s - found.disrupted_s, NODES, phases)

    return run


def skypilot_losses(file: Path) -> list[Loss]:
    """The losses in a file that the test of node groups has written.

    Raises:
        ValueError: it has none; the message says how to write it.
    """
    return [_loss_on_skypilot(found) for found in read_breakdowns(file)]


def _loss_on_skypilot(found: LossBreakdown) -> Loss:
    return _loss(found.continued_s, found.nodes, found.phases, found.repeated_steps)


def _loss(
    until_s: float, nodes: int, phases: Mapping[str, float], repeated_steps: int | None = None
) -> Loss:
    return Loss(
        new_step_s=until_s,
        all_nodes_s=until_s,
        repeated_steps=repeated_steps,
        # No way of Holdfast drops one; the program on Slurm has none.
        dropped_batches=None if repeated_steps is None else 0,
        lost_node_s=nodes * until_s,
        moved_s=None,
        has_fallen_back=False,
        phases=phases,
    )
