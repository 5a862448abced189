"""The real application and database over a simulated cloud with a simulated spot market."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from holdfast.api.app import create_app
from holdfast.code_upload.upload_store import UploadLimits, Uploads
from holdfast.controller.reconciler import PollIntervals, Reconciler
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.domain.jobs.observation import Observation
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import LauncherUnreachable
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.simulated import SimulatedClock, SimulatedCloud, SimulatedProgram
from holdfast.launchers.simulated.cloud import _SimulatedLaunch
from holdfast.launchers.simulated.timeline import Timeline
from holdfast.launchers.skypilot.admission import AdmissionRequest
from holdfast.market.markets import Markets
from holdfast.market.planners import Planners
from holdfast.notifications import open_dispatcher
from holdfast.ports import Launch
from holdfast.pricing import open_catalog
from holdfast.pricing.catalog import bundled_resource_prices
from holdfast.services import Services
from holdfast.storage import CheckpointBuckets
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.journal import Journal
from holdfast.store.launches import LaunchBook
from holdfast.store.leases import LeaseTable
from holdfast.store.notifications.channels import Channels
from holdfast.store.queries import Queries
from holdfast.store.secrets import Secrets
from httpx2 import Response
from sqlalchemy import Engine

CODE_BYTES = 16 * 1024 * 1024
"""Maximum size of uploaded code."""
JOB_FILE = """
name: tiny
resources: {infra: local}
num_nodes: 2
run: holdfast-worker run train.py
holdfast:
  checkpoint: {store: "s3://bucket/prefix", every: 10 steps}
  tags: {team: nlp}
"""


class HidingCloud(SimulatedCloud):
    """A cloud that is sometimes unreachable; its launches continue."""

    dark = False

    async def submit(self, launch: Launch) -> None:
        self._answer()
        await super().submit(launch)

    async def observe(self, key: str) -> Observation:
        self._answer()
        return await super().observe(key)

    async def cancel(self, key: str) -> None:
        self._answer()
        await super().cancel(key)

    def timelines(self) -> dict[str, Timeline]:
        """Return the launches by key, each from its submission to its end."""
        return {key: course.timeline for key, course in self._launches.items()}

    def replay(self, timelines: Mapping[str, Timeline]) -> None:
        """Replace the launches by others, as if those had run here."""
        self._launches = {key: _SimulatedLaunch(each) for key, each in timelines.items()}

    def _answer(self) -> None:
        if self.dark:
            raise LauncherUnreachable("no answer for 30 s")


@dataclass(frozen=True)
class WorldState:
    """The outside world of a service at one moment."""

    now: datetime
    timelines: Mapping[str, Timeline]
    """Launches by key."""


@dataclass
class SimulatedService:
    """A service with its cloud and clock."""

    app: FastAPI
    http: TestClient
    """A client on the service's machine, without a token."""
    services: Services
    reconciler: Reconciler
    cloud: HidingCloud
    clock: SimulatedClock

    def submit(self, file: str = JOB_FILE, **fields: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/jobs", json={"task": file, **fields})
        assert answer.status_code == 201, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def worker_token(self, job_id: str) -> dict[str, str]:
        """Return the authorization header of a job's workers."""
        return {"Authorization": f"Bearer {self.services.tokens.for_worker(job_id)}"}

    def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.http.get(f"/v1/jobs/{job_id}").json()
        return job

    def pass_time(self, seconds: float, tick_s: float = 1.0) -> None:
        """Advance the clock, the cloud and the reconciler."""
        end = self.clock.now().timestamp() + seconds
        while self.clock.now().timestamp() < end:
            self.clock.advance(tick_s)
            asyncio.run(self.reconciler.sweep())

    @property
    def is_new(self) -> bool:
        """Whether nothing was submitted, launched or waited for."""
        is_idle = self.clock.now() == SimulatedClock().now() and not self.cloud.timelines()
        return is_idle and not self.services.queries.jobs(limit=1).jobs

    def state(self) -> WorldState:
        """What this service has beside its database."""
        return WorldState(self.clock.now(), self.cloud.timelines())

    def restore(self, state: WorldState) -> None:
        """Continue from a state; the database must already be of that time."""
        self.clock.advance((state.now - self.clock.now()).total_seconds())
        self.cloud.replay(state.timelines)

    def drill(self, job_id: str, notice_s: float | None = None, **asked: Any) -> Response:
        """Request the preemption of a node, as a user does."""
        body = {"notice_s": notice_s, **asked}
        return self.http.post(f"/v1/jobs/{job_id}/preempt", json=body)

    def take_node(self, job_id: str, notice_s: float | None, then_s: float = 0) -> None:
        """Let the market preempt a node of the job, and advance the clock."""
        key = self.services.journal.read(job_id).launch_key
        with ThreadPoolExecutor(1) as executor:  # A browser's event loop may run in this thread.
            preempt = self.cloud.preempt(key, node=None, notice_s=notice_s)
            executor.submit(asyncio.run, preempt).result()
        self.services.leases.make_due(job_id, self.clock.now())
        self.pass_time(then_s)

    def until(self, job_id: str, state: str, limit_s: float = 3600) -> dict[str, Any]:
        """Advance the clock until the job is in `state`."""
        for _ in range(int(limit_s)):
            if self.services.journal.read(job_id).status == state:
                return self.job(job_id)
            self.pass_time(1)
        job = self.job(job_id)
        pytest.fail(
            f"job {job_id} is {job['state']}, not {state}, after {limit_s} s: {job['detail']}"
        )


def client(app: FastAPI, host: str = "127.0.0.1", **headers: str) -> TestClient:
    """Return a client whose requests come from `host`."""
    return TestClient(
        app,
        base_url="http://127.0.0.1:8642",
        client=(host, 40000),
        headers=headers,
        raise_server_exceptions=False,
    )


def open_world(
    engine: Engine, home: Path | None = None
) -> tuple[FastAPI, tuple[Services, Reconciler, HidingCloud, SimulatedClock]]:
    """Create an empty application and its parts; without a home, it accepts no uploads."""
    clock = SimulatedClock()
    program = SimulatedProgram(
        total_steps=60, setup_s=3, restore_s=1, checkpoint_every_steps=10, stall_s=0.2, upload_s=2
    )
    cloud = HidingCloud(clock, MarketParameters(provision_s=2.0), program)
    journal, leases, tokens = (
        Journal(engine, clock),
        LeaseTable(engine),
        ServiceTokens(engine, b"secret"),
    )
    shared = {"journal": journal, "tokens": tokens, "clock": clock}
    launchers = {Kind.LOCAL: cloud}
    uploads = (
        Uploads(
            home / "code",
            clock,
            UploadLimits(most_bytes=CODE_BYTES, most_total_bytes=CODE_BYTES, days=14),
        )
        if home
        else None
    )
    prices = open_catalog((), clock, asks_aws=False)
    planners = Planners(Markets(engine, prices, launchers))
    reconciler = Reconciler(
        **shared,
        planners=planners,
        leases=leases,
        launchers=launchers,
        inbox=cloud,
        intervals=PollIntervals(),
        worker_url="http://127.0.0.1",
        secrets=Secrets(engine, b"secret"),
        folders=Folders(home),
        uploads=uploads,
    )
    services = Services(
        **shared,
        leases=leases,
        engine=engine,
        queries=Queries(engine),
        secrets=Secrets(engine, b"secret"),
        channels=Channels(engine, clock, b"secret"),
        messenger=open_dispatcher(clock, allowed="127.0.0.0/8", takes_http=True),
        launchers=launchers,
        launches=LaunchBook(engine, b"secret"),
        prices=prices,
        resource_prices=bundled_resource_prices(),
        reconciler_planners=planners,
        uploads=uploads,
        open_bucket=CheckpointBuckets(clock).open,
        read_admission=AdmissionRequest.parse,
    )
    return create_app(services), (services, reconciler, cloud, clock)


@contextmanager
def at_a_port(app: Callable[..., Any], port: int = 0) -> Iterator[str]:
    """Serve an application on a port, a free one by default; yield its URL."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)  # A loop without a pause keeps the thread from starting.
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def served(world: SimulatedService, app: Callable[..., Any] | None = None) -> Iterator[str]:
    """Serve the simulated service, or an application around it, on a port; yield its URL.

    The test client does not support streams.
    """
    with at_a_port(app or world.app) as url:
        try:
            yield url
        finally:
            world.services.stopping.set()
