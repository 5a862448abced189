"""Logs of a SkyPilot job in the API, read beside a running reconciler and during outages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import pytest
from fake_skypilot import JobSimulation
from fake_skypilot.socket_server import application
from fastapi.testclient import TestClient
from holdfast.api.app import create_app
from holdfast.controller.launcher_health import LauncherHealthMonitor
from holdfast.controller.reconciler import PollIntervals, Reconciler
from holdfast.controller.thread import ControllerThread
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.ingest.spool_reader import SpoolReader
from holdfast.launchers.skypilot.admission import AdmissionRequest
from holdfast.notifications import open_dispatcher
from holdfast.ports import Launcher
from holdfast.pricing import open_catalog
from holdfast.services import Services
from holdfast.store.database import upgrade
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.notifications.channels import Channels
from holdfast.store.queries import Queries
from holdfast.store.secrets import Secrets
from sqlalchemy import Engine
from support.simulated_service import at_a_port, client
from support.skypilot.launcher import SkyPilotHarness, launcher_over

JOB_FILE = "run: python train.py\nresources: {infra: aws, accelerators: A100:8, use_spot: false}\n"


@dataclass
class LogService:
    """A service with a SkyPilot job that is running and prints output."""

    harness: SkyPilotHarness
    services: Services
    job: str

    @property
    def key(self) -> str:
        return f"{self.job}-1"

    def with_launcher(self, launcher: Launcher) -> Services:
        return replace(self.services, launchers={Kind.SKYPILOT: launcher})

    def reconciler(self, services: Services) -> Reconciler:
        return Reconciler(
            journal=services.journal,
            leases=services.leases,
            tokens=services.tokens,
            launchers=services.launchers,
            inbox=SpoolReader(self.harness.folder),
            clock=services.clock,
            intervals=PollIntervals(),
            worker_url="http://127.0.0.1",
            secrets=services.secrets,
        )

    def http(self, services: Services | None = None) -> TestClient:
        return client(create_app(services or self.services))


@pytest.fixture
def logs(tmp_path: Path, open_engine: Callable[[str], Engine]) -> LogService:
    engine = open_engine(f"sqlite:///{tmp_path / 'holdfast.db'}")
    upgrade(engine)
    harness = SkyPilotHarness(engine, tmp_path, JobSimulation(runs_s=100_000))
    services = Services(
        engine=engine,
        journal=Journal(engine, harness.clock),
        queries=Queries(engine),
        leases=LeaseTable(engine),
        tokens=ServiceTokens(engine, b"secret"),
        secrets=Secrets(engine, b"secret"),
        channels=Channels(engine, harness.clock, b"secret"),
        messenger=open_dispatcher(harness.clock),
        launchers={Kind.SKYPILOT: harness.launcher},
        launches=harness.book,
        prices=open_catalog((), harness.clock, asks_aws=False),
        clock=harness.clock,
        read_admission=AdmissionRequest.parse,
    )
    with client(create_app(services)) as http:
        job = http.post("/v1/jobs", json={"task": JOB_FILE}).json()["id"]
    logs = LogService(harness, services, job)
    reconciler = logs.reconciler(services)
    for _ in range(100):
        harness.pass_time(5)
        asyncio.run(reconciler.sweep())
    assert harness.look(logs.key).status is LaunchStatus.UP
    return logs


def test_cloud_job_log_is_the_output_of_its_nodes(logs: LogService) -> None:
    logs.harness.server.prints = "Größe: 1\n".encode()

    with logs.http() as http:
        [listed] = http.get(f"/v1/jobs/{logs.job}/logs").json()
        read = http.get(f"/v1/jobs/{logs.job}/logs/text")

    assert listed == {"attempt": 1, "node": 0, "size_bytes": 11, "rank": None}
    assert read.text == "Größe: 1\n"
    assert (read.headers["X-Attempt"], read.headers["X-Next-Offset"]) == ("1", "11")


def test_reading_logs_keeps_controller_connections_open(logs: LogService) -> None:
    """Connections stay open between calls, and belong to the event loop that has opened them."""
    transport = httpx2.AsyncHTTPTransport()
    with at_a_port(application(logs.harness.server)) as url:
        launcher = launcher_over(
            transport, logs.harness.book, logs.harness.folder, logs.harness.clock, url
        )
        services = logs.with_launcher(launcher)
        thread = ControllerThread(
            logs.reconciler(services), PollIntervals(), LauncherHealthMonitor({}, services.clock)
        )
        thread.start()

        async def observe() -> Observation:
            seen = await thread.call(launcher.observe(logs.key))
            await thread.call(transport.aclose())
            return seen

        with logs.http(replace(services, call_launcher=thread.call)) as http:
            answer = [http.get(f"/v1/jobs/{logs.job}/logs/text").text for _ in range(2)]
            seen = asyncio.run(observe())
        thread.stop()

    assert answer == ["hello\n", "hello\n"]
    assert seen.status is LaunchStatus.UP


def test_copied_log_is_readable_during_an_outage(logs: LogService) -> None:
    with logs.http() as http:
        before = http.get(f"/v1/jobs/{logs.job}/logs/text")
        logs.harness.line.dark = True
        logs.harness.clock.advance(100)

        after = http.get(f"/v1/jobs/{logs.job}/logs/text")

    assert (before.text, after.text) == ("hello\n", "hello\n")


def test_logs_need_a_running_controller_thread(logs: LogService) -> None:
    thread = ControllerThread(
        logs.reconciler(logs.services),
        PollIntervals(),
        LauncherHealthMonitor({}, logs.services.clock),
    )

    with logs.http(replace(logs.services, call_launcher=thread.call)) as http:
        answer = http.get(f"/v1/jobs/{logs.job}/logs")

    assert answer.status_code == 503
    assert "the controller thread has stopped" in answer.json()["detail"]


def test_logs_of_a_removed_launcher_are_unavailable(logs: LogService) -> None:
    with logs.http(replace(logs.services, launchers={})) as http:
        answer = http.get(f"/v1/jobs/{logs.job}/logs")

    assert answer.status_code == 503
    assert "runs without the SkyPilot launcher" in answer.json()["detail"]
