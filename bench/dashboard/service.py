"""The measured service: `holdfast serve` with 10,000 jobs, one of which has many reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.launchers.local.launch_dir import LaunchDir
from holdfast.server import composition
from holdfast.settings import Settings, SimulatedMarketSettings
from holdfast.store.tables.jobs import metric_points
from ingest.services import free_port, running
from reads import job_histories
from reads.seed import seed
from sqlalchemy import func, select

NODES, RANKS = 2, 8
"""Nodes of an attempt, and ranks of each node."""
LONG = (2, 0)
"""Attempt and node of the long log, which the page displays first."""
SHORT_LINES = 2_000
BLOCKS = 1_000_000
"""Metric blocks that are written in advance: all, as after a minute of operation."""


@dataclass(frozen=True)
class ServiceProcess:
    """A running service."""

    url: str
    job: str
    """The job with the points and the log lines."""
    points: int


@contextmanager
def running_service(
    home: Path, *, jobs: int, events: int, points: int, lines: int
) -> Iterator[ServiceProcess]:
    """Run the service; yield it once it responds."""
    settings = Settings(home=home, database_url=None, prices_live=False)
    services = composition.build(settings, SimulatedMarketSettings(), "http://127.0.0.1:1").services
    store = (home / "store").as_uri()
    attempts = _attempts(events // jobs, store)
    counts = {"job_count": jobs, "event_count": events, "points": -(-points // attempts)}
    job = seed(services.engine, services.journal, store, **counts)
    services.series.roll_up(BLOCKS)
    with services.engine.connect() as connection:
        mine = select(func.count()).where(metric_points.c.job_id == job)
        stored: int = connection.execute(mine).scalar_one()
    services.engine.dispose()
    _print_logs(home, job, lines)
    port = free_port()
    environment = {"HOLDFAST_HOME": str(home), "HOLDFAST_PRICES_LIVE": "false"}
    with running(_command(port), port, environment):
        yield ServiceProcess(f"http://127.0.0.1:{port}", job, stored)


def _command(port: int) -> list[str]:
    return [sys.executable, "-m", "holdfast", "serve", "--port", str(port)]


def _attempts(events: int, store: str) -> int:
    """Number of attempts of the first job that trained."""
    facts = job_histories.story(0, events, SystemClock().now(), is_live=True, store=store)
    return max(1, sum(type(fact).__name__ == "TrainingStarted" for fact in facts))


def _print_logs(home: Path, job: str, lines: int) -> None:
    """Write the logs of two attempts as the local launcher stores them, one of them long."""
    folder = LaunchDir(home / "launches" / f"{job}-1")
    for attempt, node in product((1, 2), range(NODES)):
        place = folder.node(attempt, node)
        _print(place.log, lines if (attempt, node) == LONG else SHORT_LINES)
        for rank in range(node * RANKS, (node + 1) * RANKS):
            _print(place.rank_log(rank), SHORT_LINES)


def _print(log: Path, lines: int) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = SystemClock().now()
    with log.open("w") as file:
        for step in range(lines):
            at = begin + timedelta(seconds=step)
            file.write(f"{at:%Y-%m-%d %H:%M:%S} step {step:>7} loss {2 / (1 + step):.4f}\n")
