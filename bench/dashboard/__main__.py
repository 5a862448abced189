"""Whether the dashboard stays smooth. See README.md; run it with `make bench-dashboard`."""

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
from dashboard.views import Taken, View, views, visit

MOST = Taken(first_ms=1_000, whole_ms=4_000, slowest_ms=200, held_ms=400, heap_mb=100, nodes=30_000)
"""Goals, on two cores. 200 ms is what people still feel as one with what they do (web.dev: Interaction to Next Paint)."""


def main() -> None:
    """Seed, look and print; fails where a goal is missed."""
    words = argparse.ArgumentParser(prog="python -m dashboard", description=__doc__)
    words.add_argument("--jobs", type=int, default=10_000)
    words.add_argument("--events", type=int, default=300_000, help="of all jobs together")
    words.add_argument("--points", type=int, default=100_000, help="of one job")
    words.add_argument("--lines", type=int, default=1_000_000, help="of one log of it")
    words.add_argument("--times", type=int, default=5, help="how often each page is gone to")
    words.add_argument("--out", type=Path, help="file for the figures as JSON")
    asked = words.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("needs Chromium; on Debian: sudo apt-get install chromium, or make chromium")
    print(f"{os.cpu_count()} cores, load {', '.join(f'{each:.1f}' for each in os.getloadavg())}")
    counts = {name: getattr(asked, name) for name in ("jobs", "events", "points", "lines")}
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, running_service(Path(folder), **counts) as there:
        print(
            f"{asked.jobs:,} jobs; one of them has {there.points:,} points and {asked.lines:,} lines"
        )
        print(
            f"{'median of ' + str(asked.times):<16}"
            + "".join(f"{one.name:>12}" for one in fields(Taken))
        )
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            for view in views(there.job):
                taken = [visit(browser, there.url, view) for _ in range(asked.times)]
                figures[view.name] = _medians(view, taken)
            browser.close()
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1))
    sys.exit(_missed(figures))


def _medians(view: View, taken: list[Taken]) -> dict[str, float]:
    rows = [asdict(each) for each in taken]
    found = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print(f"{view.name:<16}" + "".join(f"{value:>12,.0f}" for value in found.values()), flush=True)
    return found


def _missed(figures: dict[str, dict[str, float]]) -> bool:
    goals = asdict(MOST)
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
