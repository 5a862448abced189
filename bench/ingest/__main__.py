"""Measures the receiving of reports. See README.md; run it with `make bench-ingest`."""

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
    """Measure and print; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m ingest", description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=15, help="of each load pattern")
    parser.add_argument("--only", nargs="+", choices=("sqlite", "postgresql"))
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}, {arguments.workers} workers")
    print(_disk())
    print(_HEAD)
    figures: list[dict[str, Any]] = []
    for open_host in _hosts(arguments.workers, arguments.only or ("sqlite", "postgresql")):
        with open_host as host:
            for course in ("paced", "pressed"):
                figures.append(_measured(host, course, arguments.seconds))
                print(_line(figures[-1]), flush=True)
    verdicts = list(_verdicts(figures))
    print("\n".join(f"{'reached' if reached else 'MISSED'}: {goal}" for reached, goal in verdicts))
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1))
    sys.exit(not all(reached for reached, _ in verdicts))


def _disk() -> str:
    """Measure the time in which the disk makes 8 kB durable, a lower limit for commits."""
    took_ms = []
    with tempfile.TemporaryFile() as file:
        for _ in range(300):
            begun_s = time.perf_counter()
            os.write(file.fileno(), bytes(8192))
            os.fdatasync(file.fileno())
            took_ms.append(1000 * (time.perf_counter() - begun_s))
    cuts = statistics.quantiles(took_ms, n=100)
    return f"fdatasync of 8 kB: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, worst {max(took_ms):.1f} ms"


def _hosts(workers: int, only: list[str]) -> Iterator[Any]:
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
    """Run one load pattern and return its statistics."""
    load_spec = {"port": host.port, "course": course, "seconds": seconds, "workers": host.workers}
    before_s, stored = host.cpu_s(), host.stored()
    process = subprocess.run(
        [sys.executable, "-m", "ingest.load"],
        input=json.dumps(load_spec),
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
    )
    if process.returncode:
        sys.exit(process.stderr)
    cpu_s = host.cpu_s() - before_s
    seen = json.loads(process.stdout)
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
    """Count acknowledged points; the next load pattern continues with their numbers."""
    before = sum(worker["n"] for worker in host.workers)
    for worker, counts in zip(host.workers, sent, strict=True):
        worker |= {"n": counts["n"], "sent": counts["sent"]}
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
