"""The SkyPilot launcher over a fake SkyPilot, with the real launch book and admission rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import httpx2
import pytest
from fake_skypilot import FaultyTransport, Job, JobSimulation, Server, SkyPilotState
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot import SkyPilotClient, SkyPilotLauncher
from holdfast.launchers.skypilot.admission import AdmissionRequest
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.launcher import SkyPilotConfig
from holdfast.launchers.skypilot.naming import JobNames
from holdfast.launchers.skypilot.placement_prices import PlacementPrices
from holdfast.launchers.skypilot.task_body import WorkdirCopies
from holdfast.ports import Launch
from holdfast.pricing import open_catalog
from holdfast.store.launches import LaunchBook
from sqlalchemy import Engine
from support.fakes import FixedClock

T = TypeVar("T")
NewSkyPilotHarness: TypeAlias = "Callable[..., SkyPilotHarness]"
NAMES = JobNames("house")
CANARY = "CANARY-4f1c"
"""Part of every value that must stay secret."""


def do(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result."""
    return asyncio.run(work)


def answer_admission(book: LaunchBook, raw: bytes, now: datetime) -> tuple[int, str]:
    """Return the admission response, decided as in the API."""
    call_policy = AdmissionRequest.parse(raw)
    if call_policy.consumes_token:
        assert call_policy.token
        if not book.admit(call_policy.token, now):
            return 400, "this launch token was used"
    return 200, json.dumps(call_policy.unchanged_reply())


def launcher_over(
    line: httpx2.AsyncBaseTransport, memory: LaunchStore, folder: Path, clock: FixedClock, url: str = "http://sky"
) -> SkyPilotLauncher:  # fmt: skip
    """Create a launcher with the state of a process that has just started."""
    client = SkyPilotClient(
        url, user=NAMES.user, transport=line, monotonic_s=lambda: clock.now().timestamp()
    )
    return SkyPilotLauncher(
        door=client,
        memory=memory,
        names=NAMES,
        files=WorkdirCopies(folder),
        wheelhouse=lambda: folder,
        nudge_url=lambda job: f"http://127.0.0.1/v1/jobs/{job}/nudge/{CANARY}-nudge",
        prices=PlacementPrices(client, open_catalog((), clock, asks_aws=False), clock),
        clock=clock,
        terms=SkyPilotConfig(shares_files=True),
    )


class SkyPilotHarness:
    """One service with one SkyPilot."""

    def __init__(
        self, engine: Engine, folder: Path, simulation: JobSimulation | None = None, *, gated: bool = True, seed: int = 1
    ) -> None:  # fmt: skip
        self.clock = FixedClock()
        self.folder = folder
        self.book = LaunchBook(engine, b"secret")
        policy = self.policy if gated else None
        self.state = SkyPilotState(
            self.clock, simulation or JobSimulation(), seed=seed, policy=policy
        )
        self.server = Server(self.state)
        self.line = FaultyTransport(self.server)
        self.admission_is_up = True
        self.launcher = self.replica()

    def replica(self, transport: httpx2.AsyncBaseTransport | None = None) -> SkyPilotLauncher:
        """Create another launcher of this service, over `transport` if given."""
        return launcher_over(transport or self.line, self.book, self.folder, self.clock)

    def policy(self, raw: bytes) -> tuple[int, str]:
        """Return the admission response to SkyPilot's policy."""
        if not self.admission_is_up:
            raise ConnectionError("connection refused")
        return answer_admission(self.book, raw, self.clock.now())

    def launch(self, key: str = "job-1", **task: Any) -> Launch:
        return Launch(
            key=key,
            job_id=key.rpartition("-")[0],
            first_attempt=1,
            task={"run": "true", **task},
            max_failures=1,
            env={"HOLDFAST_TOKEN": f"{CANARY}-worker"},
            secrets={"WANDB_API_KEY": f"{CANARY}-user"},
        )

    def submit(self, key: str = "job-1", **task: Any) -> None:
        do(self.launcher.submit(self.launch(key, **task)))

    def look(self, key: str = "job-1") -> Observation:
        return do(self.launcher.observe(key))

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.state.catch_up()

    def until(
        self, running_clusters: LaunchStatus, key: str = "job-1", limit_s: float = 7200
    ) -> Observation:
        """Observe until the launch has this status, submitting it while it is absent."""
        for _ in range(int(limit_s / 5)):
            try:
                seen = self.look(key)
                if seen.status is running_clusters:
                    return seen
                if seen.status is LaunchStatus.ABSENT:
                    self.submit(key)
            except LauncherUnreachable:
                pass
            self.pass_time(5)
        raise AssertionError(f"it never was {running_clusters}")

    def jobs(self, key: str = "job-1") -> list[Job]:
        """Return all managed jobs of a launch, as the fake server has them."""
        return [job for job in self.state.jobs.values() if job.name == NAMES.job_name(key)]

    def posted(self, path: str) -> list[dict[str, Any]]:
        """Return the bodies of all received POST requests to a path."""
        return [body for there, body in self.server.posts if there == path]


class LosesReplies(FaultyTransport):
    """A transport that loses or replaces the responses to launch requests."""

    instead: httpx2.Response | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await super().handle_async_request(request)
        if request.url.path != "/jobs/launch":
            return reply
        if self.instead is not None:
            return self.instead
        raise httpx2.ReadTimeout("the reply was lost")


def submit_with_lost_reply(
    harness: SkyPilotHarness, instead: httpx2.Response | None = None
) -> None:
    """Submit a launch whose response is lost after SkyPilot accepted it."""
    line = LosesReplies(harness.server)
    line.instead = instead
    with pytest.raises(LauncherUnreachable):
        do(harness.replica(line).submit(harness.launch()))


def fail_after_admission(harness: SkyPilotHarness) -> None:
    """Submit a launch whose request is admitted but fails before a job exists."""
    harness.state.delay_s = 0
    harness.state.fails_before_row = 1
    harness.submit()
    harness.pass_time(10)
    harness.state.fails_before_row = 0


@pytest.fixture
def new_harness(tmp_path: Path, sqlite: Engine) -> NewSkyPilotHarness:
    """Return a factory of services with a fake SkyPilot; its arguments are the faults of jobs."""
    return lambda *args, **words: SkyPilotHarness(sqlite, tmp_path / "home", *args, **words)
