"""The SkyPilot launcher over the stand-in, with a real book of launches and the gate as the API keeps it."""

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
"""Is in everything that must stay secret."""


def do(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns."""
    return asyncio.run(work)


def answer_admission(book: LaunchBook, raw: bytes, now: datetime) -> tuple[int, str]:
    """What the gate answers, as the API keeps it."""
    petition = AdmissionRequest.parse(raw)
    if petition.consumes_token:
        assert petition.token
        if not book.admit(petition.token, now):
            return 400, "this launch token was used"
    return 200, json.dumps(petition.unchanged_reply())


def launcher_over(
    line: httpx2.AsyncBaseTransport, memory: LaunchStore, folder: Path, clock: FixedClock, url: str = "http://sky"
) -> SkyPilotLauncher:  # fmt: skip
    """A launcher as a process that has just started has one."""
    door = SkyPilotClient(
        url, user=NAMES.user, transport=line, monotonic_s=lambda: clock.now().timestamp()
    )
    return SkyPilotLauncher(
        door=door,
        memory=memory,
        names=NAMES,
        files=WorkdirCopies(folder),
        wheelhouse=lambda: folder,
        nudge_url=lambda job: f"http://127.0.0.1/v1/jobs/{job}/nudge/{CANARY}-nudge",
        prices=PlacementPrices(door, open_catalog((), clock, asks_aws=False), clock),
        clock=clock,
        terms=SkyPilotConfig(shares_files=True),
    )


class SkyPilotHarness:
    """One service with one SkyPilot."""

    def __init__(
        self, engine: Engine, folder: Path, nature: JobSimulation | None = None, *, gated: bool = True, seed: int = 1
    ) -> None:  # fmt: skip
        self.clock = FixedClock()
        self.folder = folder
        self.book = LaunchBook(engine, b"secret")
        policy = self.policy if gated else None
        self.truth = SkyPilotState(self.clock, nature or JobSimulation(), seed=seed, policy=policy)
        self.server = Server(self.truth)
        self.line = FaultyTransport(self.server)
        self.gate_is_up = True
        self.launcher = self.replica()

    def replica(self, transport: httpx2.AsyncBaseTransport | None = None) -> SkyPilotLauncher:
        """Another launcher of this service, over a line of its own where one is given."""
        return launcher_over(transport or self.line, self.book, self.folder, self.clock)

    def policy(self, raw: bytes) -> tuple[int, str]:
        """The response of the gate to SkyPilot's policy."""
        if not self.gate_is_up:
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
        self.truth.catch_up()

    def until(
        self, standing: LaunchStatus, key: str = "job-1", limit_s: float = 7200
    ) -> Observation:
        """The first sighting with this standing, submitting where nothing stands."""
        for _ in range(int(limit_s / 5)):
            try:
                seen = self.look(key)
                if seen.status is standing:
                    return seen
                if seen.status is LaunchStatus.ABSENT:
                    self.submit(key)
            except LauncherUnreachable:
                pass
            self.pass_time(5)
        raise AssertionError(f"it never was {standing}")

    def jobs(self, key: str = "job-1") -> list[Job]:
        """All managed jobs of a launch, by the stand-in's own word."""
        return [job for job in self.truth.jobs.values() if job.name == NAMES.job_name(key)]

    def posted(self, path: str) -> list[dict[str, Any]]:
        """The bodies of all POSTs to a path that have arrived."""
        return [body for there, body in self.server.posts if there == path]


class LosesReplies(FaultyTransport):
    """A line on which the answers to launches never come back, or come back as something else."""

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
    """A submit whose answer is lost after SkyPilot has taken it."""
    line = LosesReplies(harness.server)
    line.instead = instead
    with pytest.raises(LauncherUnreachable):
        do(harness.replica(line).submit(harness.launch()))


def fail_after_admission(harness: SkyPilotHarness) -> None:
    """A submit whose request the gate lets pass, and which fails before there is a job."""
    harness.truth.delay_s = 0
    harness.truth.fails_before_row = 1
    harness.submit()
    harness.pass_time(10)
    harness.truth.fails_before_row = 0


@pytest.fixture
def new_harness(tmp_path: Path, sqlite: Engine) -> NewSkyPilotHarness:
    """Makes a service with a fake SkyPilot, given the faults of its jobs."""
    return lambda *args, **words: SkyPilotHarness(sqlite, tmp_path / "home", *args, **words)
