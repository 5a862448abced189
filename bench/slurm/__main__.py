"""Recovery time of a Slurm job with and without Holdfast, between its signs of life.

Slurm requeues both on the same cluster, one after the other. The difference is Holdfast's preflight, probe
and script.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Final

from local_slurm import NotPossible, start_cluster

from slurm.requeue import DISRUPTIONS, NeverBack, measure, ours, plain

GOAL_S: Final = 5.0
NODES: Final = 2


def main() -> None:
    """Print the table and check the goal."""
    parser = argparse.ArgumentParser(prog="make bench-slurm", description=__doc__)
    parser.add_argument(
        "--times", type=int, default=3, help="number of runs; the median is printed"
    )
    parser.add_argument("--only", choices=DISRUPTIONS, help="one of them alone")
    arguments = parser.parse_args()
    late = []
    try:
        with start_cluster() as cluster:
            print(f"{'':<12}{'Slurm':>9}{'Holdfast':>10}{'beyond':>9}")
            for disruption in [arguments.only] if arguments.only else DISRUPTIONS:
                slurms, mine = (
                    statistics.median(
                        measure(cluster, disruption, start, NODES).away_s
                        for _ in range(arguments.times)
                    )
                    for start in (plain, ours)
                )
                late += [disruption] if mine - slurms > GOAL_S else []
                print(
                    f"{disruption:<12}{slurms:>7.1f} s{mine:>8.1f} s{mine - slurms:>7.1f} s",
                    flush=True,
                )
    except (NotPossible, NeverBack) as reason:
        sys.exit(str(reason))
    sys.exit(f"more than {GOAL_S:.0f} s beyond Slurm: {', '.join(late)}" if late else None)


if __name__ == "__main__":
    main()
