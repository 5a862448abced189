"""Faults of a real service's dependencies, and the measured behavior of the service."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import httpx2
import psutil
import psycopg
from holdfast.clock import SystemClock
from holdfast.domain.jobs.guards import SAVE_GRACE_S
from support.live_service import Service
from support.requirements import skip_or_fail

AFTER_S: Final = 6.0
"""Time until a job reaches its limit, within the fault."""
FAULT_TAIL_S: Final = 5.0
"""How long a fault continues after that under which no limit can be recorded."""
JOB: Final = "name: {0}\nresources: {{infra: {1}}}\nrun: sleep 600\nholdfast: {{limits: {{{2}}}}}\n"
USD_PER_HOUR: Final = "3600"
DISK_BYTES: Final = 64 * 1024 * 1024
DESCRIPTORS: Final = 64
CALLERS: Final = 100


@dataclass(frozen=True, kw_only=True)
class FaultReport:
    """Behavior of a service during a fault."""

    ready: int
    """Status code of `/readyz` during the fault."""
    ready_s: float
    cancel: int
    """Status code of a cancellation during the fault."""
    cancel_s: float
    cancel_detail: str
    guard: str
    """The limit that was finally recorded for the job."""
    is_held_during: bool
    """Whether the limit was recorded while the fault lasted."""
    limit_s: float
    """Seconds from the limit, or from the end of the fault if later, until it was recorded."""
    log: str


class ServiceUnderFault:
    """A service with an unresponsive SkyPilot and a separate database."""

    def __init__(self, folder: Path, silent: str, url: str | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.service = Service(folder)
        self.service.environment |= {
            "HOLDFAST_SKYPILOT_URL": silent,
            "HOLDFAST_LOCAL_SPOT_USD_PER_HOUR": USD_PER_HOUR,
            "HOLDFAST_LOCAL_ON_DEMAND_USD_PER_HOUR": USD_PER_HOUR,
        }
        if url:
            self.service.environment["HOLDFAST_DATABASE_URL"] = url
        self.http = httpx2.Client(base_url=self.service.environment["HOLDFAST_URL"], timeout=60)

    @property
    def pid(self) -> int:
        assert self.service.process
        return self.service.process.pid

    @property
    def log(self) -> str:
        return (self.service.folder / "service.log").read_text()

    def __enter__(self) -> Self:
        self.service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        if self.service.process is not None:
            self.service.end(signal.SIGKILL)
        self.service.sweep()

    def submit(self, name: str, infra: str, limit: str = "") -> str:
        task = JOB.format(name, infra, limit)
        answer = self.http.post("/v1/jobs", json={"task": task, "force": True})
        assert answer.status_code == 201, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def event(self, job_id: str, kind: str) -> dict[str, Any]:
        """Wait for the first event of this kind of a job, and return it."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            with suppress(httpx2.TransportError):
                answer = self.http.get(f"/v1/jobs/{job_id}/events")
                events = answer.json() if answer.status_code == 200 else []
                found.extend(event for event in events if event["kind"] == kind)
            return bool(found)

        self.service.wait(look, f"{job_id} has {kind}")
        return found[0]

    def timed(self, method: str, path: str) -> tuple[httpx2.Response, float]:
        """Send a request; return the response and its duration in seconds."""
        began_s = time.monotonic()
        try:
            answer = self.http.request(method, path)
        except (httpx2.ReadError, httpx2.RemoteProtocolError):
            # The service closed an idle connection while the request was sent.
            answer = self.http.request(method, path)
        return answer, time.monotonic() - began_s

    def is_ready(self) -> bool:
        with suppress(httpx2.TransportError):
            return self.http.get("/readyz").status_code == 200
        return False


def local_jobs(target: ServiceUnderFault) -> tuple[str, str, datetime]:
    """Submit a job that soon reaches its cost limit, and another; return that time, too."""
    other, limited = target.submit("other", "local"), target.submit("limited", "local")
    target.event(other, "NodesReady")
    nodes = target.event(limited, "NodesReady")
    due_at = SystemClock().now() + timedelta(seconds=AFTER_S)
    paid_s = (due_at - _moment(nodes["at"])).total_seconds()
    cost_micros = nodes["body"]["micros_per_hour"] * (SAVE_GRACE_S + paid_s) / 3600
    limits = {"max_cost_usd": round(cost_micros / 1_000_000, 2)}
    answer = target.http.patch(f"/v1/jobs/{limited}/limits", json=limits)
    assert answer.status_code == 200, answer.text
    return limited, other, due_at


def remote_jobs(target: ServiceUnderFault) -> tuple[str, str, datetime]:
    """Submit a SkyPilot job that soon reaches its deadline, and another; return that time, too."""
    other, limited = target.submit("other", "aws"), target.submit("limited", "aws", f"deadline: {AFTER_S:.0f}s")  # fmt: skip
    submitted = target.event(limited, "Submitted")
    return limited, other, _moment(submitted["at"]) + timedelta(seconds=AFTER_S)


def run_fault(
    target: ServiceUnderFault,
    fault: Callable[[], AbstractContextManager[object]],
    jobs: Callable[[ServiceUnderFault], tuple[str, str, datetime]] = local_jobs,
    *,
    blocks: bool = False,
) -> FaultReport:
    """Measure a service while a job reaches its limit and another is cancelled during a fault.

    `blocks`: nothing can be recorded during the fault; otherwise it continues until the limit is.
    """
    service, log_start = target.service, len(target.log)
    limited, other, due_at = jobs(target)
    # However long a fault takes to begin, no limit is recorded before one that blocks records.
    with begun_while_stopped(target.pid, fault) if blocks else fault():
        cancel, cancel_s = target.timed("POST", f"/v1/jobs/{other}/cancel")
        end_at = due_at + timedelta(seconds=FAULT_TAIL_S)
        service.wait(lambda: SystemClock().now() > end_at, "the limit was reached a while ago")
        if not blocks:
            target.event(limited, "GuardTripped")
        ready, ready_s = target.timed("GET", "/readyz")
        ended_at = SystemClock().now()
    service.wait(target.is_ready, "it is ready again")
    tripped = target.event(limited, "GuardTripped")
    held_at = _moment(tripped["recorded_at"])
    again = target.http.post(f"/v1/jobs/{other}/cancel")
    assert again.status_code == 202, again.text
    if jobs is local_jobs:
        target.event(limited, "Paused")
        target.event(other, "Finished")
    return FaultReport(
        ready=ready.status_code,
        ready_s=ready_s,
        cancel=cancel.status_code,
        cancel_s=cancel_s,
        cancel_detail=cancel.json().get("detail") or "",
        guard=tripped["body"]["guard"],
        is_held_during=held_at <= ended_at,
        limit_s=(held_at - (due_at if held_at <= ended_at else ended_at)).total_seconds(),
        log=target.log[log_start:],
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


@contextmanager
def begun_while_stopped(
    pid: int, fault: Callable[[], AbstractContextManager[object]]
) -> Iterator[None]:
    """A fault of a process that does nothing while the fault begins, however long that takes."""
    process = psutil.Process(pid)
    with ExitStack() as stack:
        process.suspend()
        try:
            stack.enter_context(fault())
        finally:
            process.resume()
        yield


@contextmanager
def silent_server() -> Iterator[str]:
    """Serve an address that accepts connections and never responds; yield its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def stopped_inside_a_write(pid: int, url: str, name: str) -> Iterator[None]:
    """Stop a replica between the start of a write and its commit.

    `name` is the application name of the replica's connections.
    """
    process = psutil.Process(pid)
    with psycopg.connect(url) as connection, psycopg.connect(url, autocommit=True) as monitor:
        while not _stop_in_time(connection, monitor, process, name):
            pass
        try:
            yield
        finally:
            process.resume()


def _stop_in_time(
    connection: psycopg.Connection[Any],
    monitor: psycopg.Connection[Any],
    process: psutil.Process,
    name: str,
) -> bool:
    """Whether the replica was stopped while it alone was writing; otherwise another one was."""
    waits = "SELECT application_name FROM pg_stat_activity WHERE wait_event = 'relation'"
    with connection.transaction():
        connection.execute("LOCK TABLE watches IN SHARE MODE")
        while not (writers := [row[0] for row in monitor.execute(waits)]):
            pass
        if name in writers:
            process.suspend()
    return name in writers


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Fill the disk of a folder completely."""
    file = folder / "filling"
    try:
        with file.open("wb", buffering=0) as stream, suppress(OSError):
            while True:
                stream.write(b"x" * 4096)
        yield
    finally:
        file.unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small disk in a folder."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "holdfast-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        skip_or_fail("a small disk takes the right to mount one: run the tests as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def few_descriptors(pid: int, port: int) -> Iterator[None]:
    """Limit a service to 64 descriptors, and open more connections than that."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, before[1]))
    with ExitStack() as callers:
        for _ in range(CALLERS):
            caller = callers.enter_context(socket.create_connection(("127.0.0.1", port)))
            caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def no_free_connections(cluster_url: str) -> Iterator[None]:
    """Open all connections that PostgreSQL has left."""
    with ExitStack() as connections:
        with suppress(psycopg.OperationalError):
            while True:
                connections.enter_context(closing(psycopg.connect(cluster_url)))
        yield
