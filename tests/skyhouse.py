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
from fakes import FixedClock
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot import SkyPilotClient, SkyPilotLauncher
from holdfast.launchers.skypilot.admission import AdmissionRequest
from holdfast.launchers.skypilot.launch_store import LaunchStore
from holdfast.launchers.skypilot.launcher import SkyPilotConfig
from holdfast.launchers.skypilot.naming import Names
from holdfast.launchers.skypilot.placement_prices import Prices
from holdfast.launchers.skypilot.task_body import Files
from holdfast.ports import Launch
from holdfast.pricing import open_catalog
from holdfast.store.launches import LaunchBook
from skystand import Job, Line, Nature, Server, Truth
from sqlalchemy import Engine

T = TypeVar("T")
NewHouse: TypeAlias = "Callable[..., SkyHouse]"
NAMES = Names("house")
CANARY = "CANARY-4f1c"
"""Is in everything that must stay secret."""


def do(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns."""
    return asyncio.run(work)


def ask_gate(book: LaunchBook, raw: bytes, now: datetime) -> tuple[int, str]:
    """What the gate answers, as the API keeps it."""
    petition = AdmissionRequest.read(raw)
    if petition.consumes:
        assert petition.token
        if not book.admit(petition.token, now):
            return 400, "this launch token was used"
    return 200, json.dumps(petition.unchanged())


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
        files=Files(folder),
        wheelhouse=lambda: folder,
        nudge_url=lambda job: f"http://127.0.0.1/v1/jobs/{job}/nudge/{CANARY}-nudge",
        prices=Prices(door, open_catalog((), clock, asks_aws=False), clock),
        clock=clock,
        terms=SkyPilotConfig(shares_files=True),
    )


class SkyHouse:
    """One service with one SkyPilot."""

    def __init__(
        self, engine: Engine, folder: Path, nature: Nature | None = None, *, gated: bool = True, seed: int = 1
    ) -> None:  # fmt: skip
        self.clock = FixedClock()
        self.folder = folder
        self.book = LaunchBook(engine, b"secret")
        policy = self.policy if gated else None
        self.truth = Truth(self.clock, nature or Nature(), seed=seed, policy=policy)
        self.server = Server(self.truth)
        self.line = Line(self.server)
        self.gate_is_up = True
        self.launcher = self.replica()

    def replica(self, transport: httpx2.AsyncBaseTransport | None = None) -> SkyPilotLauncher:
        """Another launcher of this service, over a line of its own where one is given."""
        return launcher_over(transport or self.line, self.book, self.folder, self.clock)

    def policy(self, raw: bytes) -> tuple[int, str]:
        """What SkyPilot's policy hears from the gate."""
        if not self.gate_is_up:
            raise ConnectionError("connection refused")
        return ask_gate(self.book, raw, self.clock.now())

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
        return do(self.launcher.look(key))

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
                if seen.standing is standing:
                    return seen
                if seen.standing is LaunchStatus.ABSENT:
                    self.submit(key)
            except LauncherUnreachable:
                pass
            self.pass_time(5)
        raise AssertionError(f"it never was {standing}")

    def jobs(self, key: str = "job-1") -> list[Job]:
        """All managed jobs of a launch, by the stand-in's own word."""
        return [job for job in self.truth.jobs.values() if job.name == NAMES.of(key)]

    def posted(self, path: str) -> list[dict[str, Any]]:
        """The bodies of all POSTs to a path that have arrived."""
        return [body for there, body in self.server.posts if there == path]


class LosesReplies(Line):
    """A line on which the answers to launches never come back, or come back as something else."""

    instead: httpx2.Response | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await super().handle_async_request(request)
        if request.url.path != "/jobs/launch":
            return reply
        if self.instead is not None:
            return self.instead
        raise httpx2.ReadTimeout("the reply was lost")


def submit_in_vain(house: SkyHouse, instead: httpx2.Response | None = None) -> None:
    """A submit whose answer is lost after SkyPilot has taken it."""
    line = LosesReplies(house.server)
    line.instead = instead
    with pytest.raises(LauncherUnreachable):
        do(house.replica(line).submit(house.launch()))


def die_past_the_gate(house: SkyHouse) -> None:
    """A submit whose request the gate lets pass, and which fails before there is a job."""
    house.truth.delay_s = 0
    house.truth.fails_before_row = 1
    house.submit()
    house.pass_time(10)
    house.truth.fails_before_row = 0
