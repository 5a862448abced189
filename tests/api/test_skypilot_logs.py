"""Logs of a job at SkyPilot over the API: read beside a reconciler that is at work, whatever became of SkyPilot."""

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
from holdfast.store.channels import Channels
from holdfast.store.database import upgrade
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import Queries
from holdfast.store.secrets import Secrets
from sqlalchemy import Engine
from support.simulated_service import at_a_port, client
from support.skypilot.launcher import SkyPilotHarness, launcher_over

JOB_FILE = "run: python train.py\nresources: {infra: aws, accelerators: A100:8, use_spot: false}\n"


@dataclass
class Place:
    """A service with a job at SkyPilot that is up, and prints."""

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
def place(tmp_path: Path, open_engine: Callable[[str], Engine]) -> Place:
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
    place = Place(harness, services, job)
    reconciler = place.reconciler(services)
    for _ in range(100):
        harness.pass_time(5)
        asyncio.run(reconciler.sweep())
    assert harness.look(place.key).status is LaunchStatus.UP
    return place


def test_cloud_job_log_is_the_output_of_its_nodes(place: Place) -> None:
    place.harness.server.prints = "Größe: 1\n".encode()

    with place.http() as http:
        [listed] = http.get(f"/v1/jobs/{place.job}/logs").json()
        read = http.get(f"/v1/jobs/{place.job}/logs/text")

    assert listed == {"attempt": 1, "node": 0, "size_bytes": 11, "rank": None}
    assert read.text == "Größe: 1\n"
    assert (read.headers["X-Attempt"], read.headers["X-Next-Offset"]) == ("1", "11")


def test_reading_logs_keeps_controller_connections_open(place: Place) -> None:
    """They are kept open between calls, and belong to the loop that has opened them."""
    line = httpx2.AsyncHTTPTransport()
    with at_a_port(application(place.harness.server)) as url:
        launcher = launcher_over(
            line, place.harness.book, place.harness.folder, place.harness.clock, url
        )
        services = place.with_launcher(launcher)
        heart = ControllerThread(
            place.reconciler(services), PollIntervals(), LauncherHealthMonitor({}, services.clock)
        )
        heart.start()

        async def look() -> Observation:
            seen = await heart.call(launcher.observe(place.key))
            await heart.call(line.aclose())
            return seen

        with place.http(replace(services, call_launcher=heart.call)) as http:
            answer = [http.get(f"/v1/jobs/{place.job}/logs/text").text for _ in range(2)]
            seen = asyncio.run(look())
        heart.stop()

    assert answer == ["hello\n", "hello\n"]
    assert seen.status is LaunchStatus.UP


def test_copied_log_is_readable_during_an_outage(place: Place) -> None:
    with place.http() as http:
        before = http.get(f"/v1/jobs/{place.job}/logs/text")
        place.harness.line.dark = True
        place.harness.clock.advance(100)

        after = http.get(f"/v1/jobs/{place.job}/logs/text")

    assert (before.text, after.text) == ("hello\n", "hello\n")


def test_logs_need_a_running_controller_thread(place: Place) -> None:
    heart = ControllerThread(
        place.reconciler(place.services),
        PollIntervals(),
        LauncherHealthMonitor({}, place.services.clock),
    )

    with place.http(replace(place.services, call_launcher=heart.call)) as http:
        answer = http.get(f"/v1/jobs/{place.job}/logs")

    assert answer.status_code == 503
    assert "the controller thread has stopped" in answer.json()["detail"]


def test_logs_of_a_removed_launcher_are_unavailable(place: Place) -> None:
    with place.http(replace(place.services, launchers={})) as http:
        answer = http.get(f"/v1/jobs/{place.job}/logs")

    assert answer.status_code == 503
    assert "runs without the SkyPilot launcher" in answer.json()["detail"]
