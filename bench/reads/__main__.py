"""Measures lists and sums over many jobs. See README.md; run it with `make bench-reads`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from holdfast.domain.events import CapacityLost, Cause, Finished, Outcome
from holdfast.domain.jobs.selection import JobFilter
from holdfast.server import composition
from holdfast.services import Services
from holdfast.settings import Settings, SimulatedMarketSettings
from ingest.services import free_port, running, wait_until_idle
from support.postgres import Cluster, NotInstalled

from reads.seed import seed

WORST_P99_MS = 200
MOST_FILTERED = 1.5
"""A filtered list needs at most this many times the CPU time of a list of all jobs. Other programs of the machine do not change it."""
MOST_MB = 400
CHURN = 15
"""One in this many requests is sent just after a job has ended."""
UNFILTERED = "/v1/jobs"
FILTERED = (
    *(
        "/v1/jobs?status=training",
        "/v1/jobs?status=failed&status=succeeded",
        "/v1/jobs?project=nlp",
    ),
    *("/v1/jobs?owner=ada", "/v1/jobs?launcher=skypilot", "/v1/jobs?find=train-01"),
    *("/v1/jobs?find=nothing", "/v1/jobs?since=30d", "/v1/jobs?tag=team:a", "/v1/jobs?tag=team"),
    *(
        "/v1/jobs?selector=team%3Da,kind!%3Dsweep-1",
        "/v1/jobs?selector=kind%20in%20(sweep-1,sweep-2)",
    ),
    *(
        "/v1/jobs?selector=!gone",
        "/v1/jobs?tag=team:a&owner=ada&status=succeeded&project=nlp&since=30d",
    ),
)
REQUESTS = (
    *(UNFILTERED, *FILTERED, "/v1/jobs?limit=200"),
    *("/v1/jobs/{job}", "/v1/jobs/{job}/bill", "/v1/jobs/{job}/attempts", "/v1/jobs/{job}/story"),
    *("/v1/jobs/{job}/events", "/v1/jobs/{job}/checkpoints", "/v1/jobs/{job}/metrics"),
    *("/v1/jobs/{job}/series", "/v1/jobs/{job}/series?name=loss"),
    *("/v1/costs", "/v1/costs?by=attempt", "/v1/costs?by=user", "/v1/costs?by=tag:team"),
    *("/v1/costs?by=zone", "/v1/costs?by=day", "/v1/costs?by=project&since=30d"),
    *("/v1/costs?by=job&since=30d", "/v1/costs?by=day&each=project&since=30d&limit=10000"),
    *("/v1/preemptions", "/v1/preemptions?by=hour", "/v1/preemptions?by=zone-hour"),
    *("/v1/preemptions/notices", "/v1/preemptions/jobs", "/v1/preemptions/history"),
    *("/v1/budgets", "/v1/projects", "/v1/audit", "/metrics"),
)


def main() -> None:
    """Seed, measure and print; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m reads", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000, help="of all jobs together")
    parser.add_argument("--points", type=int, default=10_000, help="of each attempt of one job")
    parser.add_argument("--times", type=int, default=30, help="number of requests of each kind")
    parser.add_argument("--only", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite"])
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    requested = parser.parse_args()
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}")
    figures: list[dict[str, Any]] = []
    for name in requested.only:
        with _database(name) as (url, home):
            figures += _measured(name, url, home, requested)
    missed = [f for f in figures if f["p99_ms"] > WORST_P99_MS or f["rss_mb"] > MOST_MB]
    for each in missed:
        print(f"MISSED: {each['host']} {each['path']}: p99 {each['p99_ms']:.0f} ms")
    slow = _slow_filters(figures)
    for path, times in slow.items():
        print(f"MISSED: {path}: {times:.2f} times the CPU time of all jobs")
    if not missed and not slow:
        print(f"reached: each p99 under {WORST_P99_MS} ms, memory under {MOST_MB} MB")
    if requested.out:
        requested.out.write_text(json.dumps(figures, indent=1))
    sys.exit(bool(missed or slow))


def _slow_filters(figures: list[dict[str, Any]]) -> dict[str, float]:
    """Compare filtered lists with that of all jobs on the same database."""
    whole = {each["host"]: each["cpu_ms"] for each in figures if each["path"] == UNFILTERED}
    times = {
        f"{each['host']} {each['path']}": each["cpu_ms"] / whole[each["host"]]
        for each in figures
        if each["path"] in FILTERED
    }
    return {path: ratio for path, ratio in times.items() if ratio > MOST_FILTERED}


@contextmanager
def _database(name: str) -> Iterator[tuple[str, Path]]:
    """Create an empty database and a home directory; yield its URL and the directory."""
    with tempfile.TemporaryDirectory() as folder:
        if name == "sqlite":
            yield f"sqlite:///{folder}/holdfast.db", Path(folder)
            return
        try:
            cluster = Cluster()
        except NotInstalled as reason:
            sys.exit(str(reason))
        try:
            cluster.start()
            yield cluster.new_database(), Path(folder)
        finally:
            cluster.remove()


def _measured(name: str, url: str, home: Path, requested: Any) -> list[dict[str, Any]]:
    begun_s = time.perf_counter()
    settings = Settings(home=home, database_url=url, prices_live=False)
    services = composition.build(settings, SimulatedMarketSettings(), "http://127.0.0.1:1").services
    counts = {
        "job_count": requested.jobs,
        "event_count": requested.events,
        "points": requested.points,
    }
    store = (home / "checkpoints").as_uri()
    job = seed(services.journal, services.bill_rollups, services.engine, store, **counts)
    ending = _end_jobs(services)
    print(f"{name}: {requested.jobs:,} jobs, seeded in {time.perf_counter() - begun_s:.0f} s")
    port = free_port()
    environment = {
        "HOLDFAST_HOME": str(home),
        "HOLDFAST_DATABASE_URL": url,
        "HOLDFAST_PRICES_LIVE": "false",
    }
    command = [sys.executable, "-m", "holdfast", "serve", "--port", str(port)]
    print(f"{'':<40}{'first':>8}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms':>8}{'kB':>8}{'MB':>6}")
    with (
        running(command, port, environment) as process,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):
        wait_until_idle(process)
        try:
            return [
                {
                    "host": name,
                    **_measure_request(
                        path.replace("{job}", job), http, process, requested.times, ending
                    ),
                }
                for path in REQUESTS
            ]
        finally:
            services.engine.dispose()


def _end_jobs(services: Services) -> Iterator[None]:
    """End a live job at each step, as happens every few minutes with so many jobs."""
    for job in services.queries.jobs(limit=200, where=JobFilter(statuses=("training",))).jobs[1:]:
        lost = CapacityLost(at=services.clock.now(), attempt=job.attempt, cause=Cause.PREEMPTED)
        end = Finished(at=services.clock.now(), outcome=Outcome.SUCCEEDED)
        services.journal.append(job, [lost, end])
        yield


def _measure_request(
    path: str, http: httpx2.Client, process: Any, times: int, ending: Iterator[None]
) -> dict[str, Any]:
    took_ms, size = list[float](), 0
    for number in range(times + 1):
        if number % CHURN == CHURN - 1:
            next(ending, None)
        if number == 1:
            cpu_s = _cpu_s(process)
        begun_s = time.perf_counter()
        answer = http.get(path)
        took_ms.append(1000 * (time.perf_counter() - begun_s))
        size = len(answer.content)
        if answer.status_code != 200:
            sys.exit(f"{path} was answered {answer.status_code}: {answer.text[:300]}")
    first, rest = took_ms[0], took_ms[1:]
    cuts = statistics.quantiles(rest, n=100, method="inclusive")
    figures = {
        "path": path,
        "first_ms": first,
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "cpu_ms": 1000 * (_cpu_s(process) - cpu_s) / times,
        "kb": size / 1000,
        "rss_mb": process.memory_info().rss / 1e6,
    }
    cells = (figures[key] for key in ("first_ms", "p50_ms", "p99_ms", "cpu_ms", "kb"))
    print(f"{path:<40}" + "".join(f"{x:>8.1f}" for x in cells) + f"{figures['rss_mb']:>6.0f}", flush=True)  # fmt: skip
    return figures


def _cpu_s(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
