"""What it costs to take reports, beside an endpoint that stores nothing. See README.md; run it with `make bench-ingest`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.postgres import Cluster, NotInstalled

from ingest import services
from ingest.services import ServiceHost

WORST_P99_MS = 100
MOST_TIMES_BARE = 3


def main() -> None:
    """Measure and print; fails where a goal is missed."""
    words = argparse.ArgumentParser(prog="python -m ingest", description=__doc__)
    words.add_argument("--workers", type=int, default=1000)
    words.add_argument("--seconds", type=float, default=15, help="of each course")
    words.add_argument("--only", nargs="+", choices=("sqlite", "postgresql"))
    words.add_argument("--out", type=Path, help="file for the figures as JSON")
    asked = words.parse_args()
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}, {asked.workers} workers")
    print(_disk())
    print(_HEAD)
    figures: list[dict[str, Any]] = []
    for open_host in _contestants(asked.workers, asked.only or ("sqlite", "postgresql")):
        with open_host as host:
            for course in ("paced", "pressed"):
                figures.append(_measured(host, course, asked.seconds))
                print(_line(figures[-1]), flush=True)
    verdicts = list(_verdicts(figures))
    print("\n".join(f"{'reached' if reached else 'MISSED'}: {goal}" for reached, goal in verdicts))
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1))
    sys.exit(not all(reached for reached, _ in verdicts))


def _disk() -> str:
    """What the disk alone takes to make 8 kB durable: no commit is faster."""
    took_ms = []
    with tempfile.TemporaryFile() as file:
        for _ in range(300):
            begun_s = time.perf_counter()
            os.write(file.fileno(), bytes(8192))
            os.fdatasync(file.fileno())
            took_ms.append(1000 * (time.perf_counter() - begun_s))
    cuts = statistics.quantiles(took_ms, n=100)
    return f"fdatasync of 8 kB: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, worst {max(took_ms):.1f} ms"


def _contestants(workers: int, only: list[str]) -> Iterator[Any]:
    yield services.bare(workers)
    if "sqlite" in only:
        yield _over_sqlite(workers)
    if "postgresql" in only:
        yield _over_postgresql(workers)


@contextmanager
def _over_sqlite(workers: int) -> Iterator[ServiceHost]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        url = f"sqlite:///{home / 'holdfast.db'}"
        with services.service("sqlite", url, home, workers) as host:
            yield host


@contextmanager
def _over_postgresql(workers: int) -> Iterator[ServiceHost]:
    try:
        cluster = Cluster()
    except NotInstalled as reason:
        sys.exit(str(reason))
    try:
        cluster.start()
        with tempfile.TemporaryDirectory() as folder:
            url = cluster.new_database()
            with services.service("postgresql", url, Path(folder), workers) as host:
                yield host
    finally:
        cluster.remove()


def _measured(host: ServiceHost, course: str, seconds: float) -> dict[str, Any]:
    """Figures of one course."""
    order = {"port": host.port, "course": course, "seconds": seconds, "workers": host.workers}
    before_s, stored = host.cpu_s(), host.stored()
    told = subprocess.run(
        [sys.executable, "-m", "ingest.load"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
    )
    if told.returncode:
        sys.exit(told.stderr)
    cpu_s = host.cpu_s() - before_s
    seen = json.loads(told.stdout)
    points = _advance(host, seen["sent"])
    if stored is not None and host.stored() != stored + points:
        sys.exit(f"{points} points were acknowledged, {host.stored()} - {stored} are stored")
    took_ms = sorted(1000 * each for each in seen["took_s"])
    cuts = statistics.quantiles(took_ms, n=100)
    return {
        "host": host.name,
        "course": course,
        "requests_per_s": seen["requests"] / seen["wall_s"],
        "points_per_s": points / seen["wall_s"],
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "worst_ms": took_ms[-1],
        "cpu_us": 1e6 * cpu_s / seen["requests"],
        "cores": cpu_s / seen["wall_s"],
    }


def _advance(host: ServiceHost, sent: list[dict[str, Any]]) -> int:
    """How many points were acknowledged; the next course goes on with the numbers at which this one stopped."""
    before = sum(worker["n"] for worker in host.workers)
    for worker, told in zip(host.workers, sent, strict=True):
        worker |= {"n": told["n"], "sent": told["sent"]}
    return sum(worker["n"] for worker in host.workers) - before


_HEAD = f"{'':<12}{'course':<10}{'requests/s':>11}{'points/s':>10}{'p50 ms':>8}{'p99 ms':>8}{'worst':>8}{'CPU us':>8}{'cores':>7}"


def _line(f: dict[str, Any]) -> str:
    return (
        f"{f['host']:<12}{f['course']:<10}{f['requests_per_s']:>11.0f}{f['points_per_s']:>10.0f}{f['p50_ms']:>8.1f}"
        f"{f['p99_ms']:>8.1f}{f['worst_ms']:>8.1f}{f['cpu_us']:>8.0f}{f['cores']:>7.2f}"
    )


def _verdicts(figures: list[dict[str, Any]]) -> Iterator[tuple[bool, str]]:
    by_name = {(f["host"], f["course"]): f for f in figures}
    bare = by_name["bare", "pressed"]
    for (name, course), f in by_name.items():
        if name != "bare" and course == "paced":
            p99_ms = f["p99_ms"]
            yield p99_ms < WORST_P99_MS, f"{name}: p99 {p99_ms:.0f} ms, under {WORST_P99_MS} ms"
        elif name != "bare":
            times = bare["requests_per_s"] / f["requests_per_s"]
            cost = f["cpu_us"] / bare["cpu_us"]
            goal = f"{name}: the bare endpoint is {times:.1f} times as fast, at most {MOST_TIMES_BARE} times"
            yield times <= MOST_TIMES_BARE, f"{goal}; a request takes {cost:.1f} times its CPU"


if __name__ == "__main__":
    main()
