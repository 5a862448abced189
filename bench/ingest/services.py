"""The measured services, each a separate process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from holdfast.server import composition
from holdfast.settings import Settings, SimulatedMarketSettings
from holdfast.store.database import open_database
from holdfast.store.tables.jobs import metric_points, watches
from holdfast.store.tables.launches import musters
from sqlalchemy import func, insert, select, update
from support.events import launched, ready, submitted

NEVER = datetime(2099, 1, 1, tzinfo=UTC)

IDLE_PERCENT = 5
"""CPU load in percent below which a service is idle."""
IDLE_S = 6
"""Duration of that idle period; it includes the periodic work of every five seconds."""


@dataclass
class ServiceHost:
    """A running service."""

    name: str
    port: int
    process: psutil.Process
    workers: list[dict[str, Any]]
    home: Path | None = None
    url: str | None = None

    def cpu_s(self) -> float:
        """CPU seconds used so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def stored(self) -> int | None:
        """Number of points in the database; None without a database."""
        if self.home is None:
            return None
        engine = open_database(str(self.url))
        try:
            with engine.connect() as connection:
                return connection.execute(select(func.count()).select_from(metric_points)).scalar()
        finally:
            engine.dispose()


@contextmanager
def bare(jobs: int) -> Iterator[ServiceHost]:
    """Run the endpoint that stores nothing."""
    port = free_port()
    workers: list[dict[str, Any]] = [
        {
            "job": f"bench-{i:04d}",
            "token": f"hfw_bench-{i:04d}_{'0' * 64}",
            "incarnation": None,
            "n": 0,
            "sent": 0,
        }
        for i in range(jobs)
    ]
    with running([sys.executable, "-m", "ingest.baseline", str(port)], port, {}) as process:
        yield ServiceHost("bare", port, process, workers)


@contextmanager
def service(name: str, url: str, home: Path, jobs: int) -> Iterator[ServiceHost]:
    """Run `holdfast serve` with a database of training jobs; half of the workers register."""
    workers = _seed(url, home, jobs)
    port = free_port()
    environment = {
        "HOLDFAST_HOME": str(home),
        "HOLDFAST_DATABASE_URL": url,
        "HOLDFAST_PRICES_LIVE": "false",
        "HOLDFAST_REPORTS_PER_MINUTE": "1000000",
    }
    command = [sys.executable, "-m", "holdfast", "serve", "--port", str(port)]
    with running(command, port, environment) as process:
        wait_until_idle(process)
        yield ServiceHost(name, port, process, workers, home, url)


def _seed(url: str, home: Path, jobs: int) -> list[dict[str, Any]]:
    settings = Settings(home=home, database_url=url, prices_live=False)
    services = composition.build(settings, SimulatedMarketSettings(), "http://127.0.0.1:1").services
    workers: list[dict[str, Any]] = []
    for i in range(jobs):
        job_id = f"bench-{i:04d}"
        job = services.journal.submit(job_id, submitted())
        services.journal.append(job, [launched(1), ready(2)])
        incarnation = f"{i:032x}" if i % 2 else None
        if incarnation:
            row = {"job_id": job_id, "n": 1, "incarnation": incarnation, "attempt": 1}
            with services.engine.begin() as connection:
                connection.execute(insert(musters).values(**row, asked_at=services.clock.now()))
        token = services.tokens.for_worker(job_id)
        workers.append(
            {"job": job_id, "token": token, "incarnation": incarnation, "n": 0, "sent": 0}
        )
    with services.engine.begin() as connection:
        # No launcher knows these jobs, so that they are not observed.
        connection.execute(update(watches).values(due_at=NEVER))
    services.engine.dispose()
    return workers


@contextmanager
def running(command: list[str], port: int, more: dict[str, str]) -> Iterator[psutil.Process]:
    """Run a server program; yield its process once it responds."""
    with subprocess.Popen(
        command, env={**os.environ, **more}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _await_answer(process, port)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def wait_until_idle(process: psutil.Process) -> None:
    """Wait until a service has processed its initial data, such as rollups and metric blocks."""
    deadline_s = time.monotonic() + 300
    while process.cpu_percent(interval=IDLE_S) > IDLE_PERCENT:
        if time.monotonic() > deadline_s:
            raise SystemExit("the service is not done with what it was seeded with")


def _await_answer(process: subprocess.Popen[bytes], port: int) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1).close()
        except urllib.error.HTTPError:
            return  # The bare endpoint has no such page, and responds nevertheless.
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"{process.args!r} does not answer on port {port}")


def free_port() -> int:
    """A loopback port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
