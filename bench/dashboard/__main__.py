"""Measures the dashboard. See README.md; run it with `make bench-dashboard`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import asdict, fields
from pathlib import Path

from playwright.sync_api import sync_playwright

from dashboard.service import running_service
from dashboard.views import Measurement, View, views, visit

LIMITS = Measurement(
    first_ms=1_000, whole_ms=4_000, slowest_ms=200, held_ms=400, heap_mb=100, nodes=30_000
)
"""Goals on two cores. Users perceive responses within 200 ms as immediate (web.dev: INP)."""


def main() -> None:
    """Seed, measure and print; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m dashboard", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=300_000, help="of all jobs together")
    parser.add_argument("--points", type=int, default=100_000, help="of one job")
    parser.add_argument("--lines", type=int, default=1_000_000, help="of one log of it")
    parser.add_argument("--times", type=int, default=5, help="number of visits of each page")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("needs Chromium; on Debian: sudo apt-get install chromium, or make chromium")
    print(f"{os.cpu_count()} cores, load {', '.join(f'{each:.1f}' for each in os.getloadavg())}")
    counts = {name: getattr(arguments, name) for name in ("jobs", "events", "points", "lines")}
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, running_service(Path(folder), **counts) as there:
        print(
            f"{arguments.jobs:,} jobs; one of them has {there.points:,} points and {arguments.lines:,} lines"
        )
        print(
            f"{'median of ' + str(arguments.times):<16}"
            + "".join(f"{one.name:>12}" for one in fields(Measurement))
        )
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            for view in views(there.job):
                measurements = [visit(browser, there.url, view) for _ in range(arguments.times)]
                figures[view.name] = _medians(view, measurements)
            browser.close()
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1))
    sys.exit(_missed(figures))


def _medians(view: View, measurements: list[Measurement]) -> dict[str, float]:
    rows = [asdict(each) for each in measurements]
    found = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print(f"{view.name:<16}" + "".join(f"{value:>12,.0f}" for value in found.values()), flush=True)
    return found


def _missed(figures: dict[str, dict[str, float]]) -> bool:
    goals = asdict(LIMITS)
    missed = [
        f"MISSED: {view}: {name} {value:,.0f}, at most {goals[name]:,.0f}"
        for view, found in figures.items()
        for name, value in found.items()
        if value > goals[name]
    ]
    print("\n".join(missed) or "all goals are reached")
    return bool(missed)


if __name__ == "__main__":
    main()
