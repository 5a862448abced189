"""Measures the planner's replays, forecasts and costs, or estimates its constants. See README.md."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.domain.planning.beliefs import USUAL_LOSS, USUAL_RETURN

from planner.decisions import decision_times
from planner.estimate import estimate, mean_correlation, read_places
from planner.outlook import outlook_times
from planner.speed import measured
from planner.zones import shares_of_least_cost

RECORDINGS = Path(__file__).parents[2] / "tests" / "data" / "spot_traces" / "aws_2022_10_26"


def main() -> None:
    """Print one of these."""
    parser = argparse.ArgumentParser(prog="python -m planner", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="windows that are replayed")
    parser.add_argument(
        "--estimate",
        nargs="+",
        metavar="PATH[:GANG,...]",
        help="estimate the usual chances from these recordings; each for nodes needed at once",
    )
    parser.add_argument(
        "--zones",
        type=int,
        metavar="WINDOWS",
        help="compare policies in zones of three regions with the least cost",
    )
    arguments = parser.parse_args()
    if arguments.estimate:
        _print_estimate(arguments.estimate)
        return
    if arguments.zones:
        _print_zones(arguments.zones)
        return
    traces = [*read_places(RECORDINGS, [1])]
    print(f"{'policy':24} {'job-hours per CPU-second':>25} {'CPU-seconds':>12}")
    for name, speed, cpu_s in measured(traces, arguments.rows):
        print(f"{name:24} {speed:25,.0f} {cpu_s:12.2f}", flush=True)
    print(f"\n{'forecasts of 48 h of work':50} {'CPU-seconds':>12}")
    for places, sees_all in ((1, True), (3, True), (3, False), (5, False)):
        sight = "all" if sees_all else "own"
        for name, cpu_s in outlook_times(places, sees_all=sees_all):
            print(f"{f'places {places}, sight {sight}: {name}':50} {cpu_s:12.2f}", flush=True)
    print(f"\n{'a decision of the reconciler':50} {'CPU-ms':>12}")
    for places, sees_all in ((1, True), (3, False)):
        sight = "all" if sees_all else "own"
        for name, cpu_s in decision_times(places, sees_all=sees_all):
            print(
                f"{f'places {places}, sight {sight}: {name}':50} {1000 * cpu_s:12.3f}", flush=True
            )


def _print_zones(windows: int) -> None:
    print("mean cost / least cost")
    for name, shares in shares_of_least_cost(windows):
        found = ", ".join(f"{policy} {share:.3f}" for policy, share in shares.items())
        print(f"{name}: {found}", flush=True)


def _print_estimate(sources: list[str]) -> None:
    traces = []
    for source in sources:
        path, _, gangs = source.partition(":")
        traces += read_places(Path(path), [int(each) for each in (gangs or "1").split(",")])
    found = estimate(traces)
    print(f"{len(traces)} places")
    for name, chances, now in zip(
        ("USUAL_RETURN", "USUAL_LOSS"), found, (USUAL_RETURN, USUAL_LOSS), strict=True
    ):
        print(f"{name} = ({', '.join(f'{each:.4f}' for each in chances)})  # now {now}")
    pairs, correlation = mean_correlation(traces)
    print(f"states of {pairs} pairs of zones of one region correlate with {correlation:.2f}")


if __name__ == "__main__":
    main()
