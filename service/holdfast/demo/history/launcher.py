"""Launcher of the demonstration: a simulated cloud per job, with prices of one market.

Preemptions depend on the seed and on the scenario of a job, not on its id, so that a seed always generates the same
history.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from holdfast_worker.protocol.reports import Report

from holdfast.demo.history.jobs import DemoJob, rotated
from holdfast.demo.history.logs import DemoLog, pages
from holdfast.demo.history.market import Market, NodeType, node_type_for_task
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation, Placement
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import NotPossibleNow
from holdfast.launchers.simulated import LauncherBehavior, SimulatedCloud, SimulatedProgram
from holdfast.ports import Clock, Launch, LogSource

VISITOR_PROGRAM: Final = SimulatedProgram(
    total_steps=1800,
    setup_s=6,
    restore_s=2,
    checkpoint_every_steps=60,
    upload_s=4,
    loss_noise=0.03,
    tokens_per_step=20_000,
)
"""Program of jobs that visitors submit: half an hour of training."""


@dataclass(slots=True)
class _SimulatedJob:
    """One job of the launcher."""

    alias: str
    """Name of the job in its cloud."""
    node_type: NodeType | None
    """None: local nodes, which the market does not price."""
    cloud: SimulatedCloud
    first_attempts: dict[str, int] = field(default_factory=dict)
    """First attempt of each launch, by its key."""


class DemoLauncher:
    """Launcher, market and report inbox of all jobs."""

    saves_on_cancel = True

    def __init__(self, clock: Clock, market: Market) -> None:
        self._clock = clock
        self._market = market
        self._jobs: dict[str, _SimulatedJob] = {}
        self._cancelled: dict[str, datetime] = {}
        """Launches cancelled before their submission."""
        self._lock = threading.RLock()

    def expect(self, job_id: str, part: DemoJob) -> None:
        """Assign the scenario `part` to a job id."""
        climate = part.climate
        if climate.hour_hazards:
            hours = rotated(climate.hour_hazards, self._market.start.hour)
            climate = replace(climate, hour_hazards=hours)
        cloud = SimulatedCloud(self._clock, climate, part.program, part.behavior)
        self._jobs[job_id] = _SimulatedJob(part.name, part.node_type, cloud)

    def changes_next(self) -> Mapping[str, datetime]:
        """Return the next simulated change of each running job, by job id."""
        due = {
            job_id: [
                at
                for key in stage.first_attempts
                if (at := stage.cloud.next_change_at(_cloud_key(key, stage))) is not None
            ]
            for job_id, stage in self._jobs.items()
        }
        return {job_id: min(moments) for job_id, moments in due.items() if moments}

    async def submit(self, launch: Launch) -> None:
        """Start `launch.key` unless it was started or cancelled before."""
        with self._lock:
            if launch.key in self._cancelled:
                return
            if launch.job_id not in self._jobs:
                self._jobs[launch.job_id] = self._visitor_job(launch)
            stage = self._jobs[launch.job_id]
            stage.first_attempts.setdefault(launch.key, launch.first_attempt)
        key = _cloud_key(launch.key, stage)
        await stage.cloud.submit(replace(launch, key=key, job_id=stage.alias))

    async def observe(self, key: str) -> Observation:
        """Observe the launch `key`."""
        if at := self._cancelled.get(key):
            ending = LaunchResult(
                at=at, outcome=Outcome.CANCELLED, detail="cancelled before the start"
            )
            return Observation(status=LaunchStatus.ENDED, since=at, result=ending)
        if (stage := self._job(key)) is None:
            return Observation(status=LaunchStatus.ABSENT, since=self._clock.now())
        seen = await stage.cloud.observe(_cloud_key(key, stage))
        return replace(seen, recent_placements=self._priced(stage, seen.recent_placements))

    async def cancel(self, key: str) -> None:
        """Request the end of `key`; an unsubmitted launch will never start."""
        with self._lock:
            stage = self._job(key)
            if stage is None or key not in stage.first_attempts:
                self._cancelled.setdefault(key, self._clock.now())
                return
        await stage.cloud.cancel(_cloud_key(key, stage))

    async def preempt(self, key: str, *, node: int | None, notice_s: float | None) -> None:
        """Preempt one node of the running placement (None: the last one).

        Raises:
            NotPossibleNow: no placement is running under this key, or it has no such node.
        """
        if (stage := self._job(key)) is None:
            raise NotPossibleNow(f"{key} has no running nodes")
        await stage.cloud.preempt(_cloud_key(key, stage), node=node, notice_s=notice_s)

    async def replaces_alone(self, key: str, *, node: int | None) -> bool:  # noqa: ARG002 - the port
        """Return False: a simulated placement is always lost as a whole."""
        return False

    def forget(self, key: str) -> None:
        """Lose a launch, as after the failure of a launcher."""
        stage = self._job(key)
        assert stage is not None, "only submitted launches can be lost"
        stage.cloud.forget(_cloud_key(key, stage))

    async def logs(self, key: str) -> Sequence[LogSource]:
        """List the logs so far: one per node, and one of rank 0."""
        return [
            LogSource(
                attempt=page.attempt, node=page.node, rank=page.rank, size_bytes=len(page.text)
            )
            for page in self._pages(key)
        ]

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes of a log from `offset`; empty at its end."""
        for page in self._pages(key):
            if (page.attempt, page.node, page.rank) == (source.attempt, source.node, source.rank):
                return page.text[offset : offset + limit]
        return b""

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        """Yield unread reports of a job by attempt and n. `seen` is the highest n read, by attempt."""
        if stage := self._jobs.get(job_id):
            yield from stage.cloud.read_new(stage.alias, seen)

    def _job(self, key: str) -> _SimulatedJob | None:
        return self._jobs.get(key.rpartition("-")[0])

    def _visitor_job(self, launch: Launch) -> _SimulatedJob:
        """Create the simulated cloud of a job that a visitor submitted."""
        climate = MarketParameters(seed=self._market.seed, provision_s=5.0, denial_rate=0.2)
        kind = node_type_for_task(launch.task)
        if kind is not None:
            climate = replace(climate, zones=kind.zones, mtbf_s=900, notice_s=30)
        return _SimulatedJob(
            launch.job_id,
            kind,
            SimulatedCloud(self._clock, climate, VISITOR_PROGRAM, LauncherBehavior()),
        )

    def _priced(self, stage: _SimulatedJob, trail: Sequence[Placement]) -> tuple[Placement, ...]:
        if (kind := stage.node_type) is None:
            return tuple(trail)
        return tuple(self._market.priced(placement, kind) for placement in trail)

    def _pages(self, key: str) -> list[DemoLog]:
        stage = self._job(key)
        if stage is None or key not in stage.first_attempts:
            return []
        seen, now = stage.cloud.observe_sync(_cloud_key(key, stage)), self._clock.now()
        trail = self._priced(stage, seen.recent_placements)
        batches = itertools.groupby(
            stage.cloud.read_new(stage.alias, {}), lambda report: report.attempt
        )
        reports = {attempt: list(batch) for attempt, batch in batches}
        return [
            page
            for attempt, placement in enumerate(trail, start=stage.first_attempts[key])
            for page in pages(attempt, placement, reports.get(attempt, ()), now)
        ]


def _cloud_key(key: str, stage: _SimulatedJob) -> str:
    """Return the key of a launch in the job's own cloud."""
    return f"{stage.alias}-{key.rpartition('-')[2]}"
