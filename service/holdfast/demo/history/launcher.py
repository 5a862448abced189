"""The launcher of the demonstration: each job has a simulated cloud of its own, whose nodes one market prices.

The weather of a job depends on the seed and on its part, and not on its id, so that a seed always tells the same history.
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
from holdfast.demo.history.market import Market, MarketType, kind_for
from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation, Placement
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import NotPossibleNow
from holdfast.launchers.simulated import LauncherBehavior, SimulatedCloud, SimulatedProgram
from holdfast.ports import Clock, Launch, LogSource

VISITOR: Final = SimulatedProgram(
    total_steps=1800,
    setup_s=6,
    restore_s=2,
    checkpoint_every_steps=60,
    upload_s=4,
    loss_noise=0.03,
    tokens_per_step=20_000,
)
"""What becomes of a job that a visitor submits: half an hour of training."""


@dataclass(slots=True)
class _Stage:
    """One job on it."""

    alias: str
    """What its cloud knows it as."""
    kind: MarketType | None
    """None: nodes of this machine, of which the market knows nothing."""
    cloud: SimulatedCloud
    first_attempts: dict[str, int] = field(default_factory=dict)
    """Of each launch, by its key."""


class DemoLauncher:
    """Launcher, market and inbox of reports of all jobs."""

    saves_on_cancel = True

    def __init__(self, clock: Clock, market: Market) -> None:
        self._clock = clock
        self._market = market
        self._stages: dict[str, _Stage] = {}
        self._cancelled: dict[str, datetime] = {}
        """Launches that were cancelled before they were submitted."""
        self._guard = threading.RLock()

    def expect(self, job_id: str, part: DemoJob) -> None:
        """Play `part` under this id."""
        climate = part.climate
        if climate.hour_hazards:
            hours = rotated(climate.hour_hazards, self._market.start.hour)
            climate = replace(climate, hour_hazards=hours)
        cloud = SimulatedCloud(self._clock, climate, part.program, part.habits)
        self._stages[job_id] = _Stage(part.name, part.kind, cloud)

    def changes_next(self) -> Mapping[str, datetime]:
        """When looks at jobs will show something else by themselves, by their ids; those that are over are left out."""
        told = {
            job_id: [
                at
                for key in stage.first_attempts
                if (at := stage.cloud.changes_next(_aliased(key, stage))) is not None
            ]
            for job_id, stage in self._stages.items()
        }
        return {job_id: min(moments) for job_id, moments in told.items() if moments}

    async def submit(self, launch: Launch) -> None:
        """Start `launch.key` unless it was started or cancelled before."""
        with self._guard:
            if launch.key in self._cancelled:
                return
            if launch.job_id not in self._stages:
                self._stages[launch.job_id] = self._visitor(launch)
            stage = self._stages[launch.job_id]
            stage.first_attempts.setdefault(launch.key, launch.first_attempt)
        key = _aliased(launch.key, stage)
        await stage.cloud.submit(replace(launch, key=key, job_id=stage.alias))

    async def look(self, key: str) -> Observation:
        """What stands under `key` now."""
        if at := self._cancelled.get(key):
            ending = LaunchResult(
                at=at, outcome=Outcome.CANCELLED, detail="cancelled before it began"
            )
            return Observation(standing=LaunchStatus.ENDED, since=at, ending=ending)
        if (stage := self._stage(key)) is None:
            return Observation(standing=LaunchStatus.ABSENT, since=self._clock.now())
        seen = await stage.cloud.look(_aliased(key, stage))
        return replace(seen, trail=self._priced(stage, seen.trail))

    async def cancel(self, key: str) -> None:
        """Ask for an end of `key`; what was never submitted will then never start."""
        with self._guard:
            stage = self._stage(key)
            if stage is None or key not in stage.first_attempts:
                self._cancelled.setdefault(key, self._clock.now())
                return
        await stage.cloud.cancel(_aliased(key, stage))

    async def preempt(self, key: str, *, node: int | None, notice_s: float | None) -> None:
        """Take one node (None: the last one) of the standing placement.

        Raises:
            NotPossibleNow: nothing stands under this key, or it has no such node.
        """
        if (stage := self._stage(key)) is None:
            raise NotPossibleNow(f"{key} has no standing nodes")
        await stage.cloud.preempt(_aliased(key, stage), node=node, notice_s=notice_s)

    def forget(self, key: str) -> None:
        """Lose a launch, as a launcher does that has died."""
        stage = self._stage(key)
        assert stage is not None, "nobody can forget what they never knew"
        stage.cloud.forget(_aliased(key, stage))

    async def logs(self, key: str) -> Sequence[LogSource]:
        """What its programs have printed so far: every node, and rank 0."""
        return [
            LogSource(
                attempt=page.attempt, node=page.node, rank=page.rank, size_bytes=len(page.text)
            )
            for page in self._pages(key)
        ]

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of a log from `offset`; empty at its end."""
        for page in self._pages(key):
            if (page.attempt, page.node, page.rank) == (source.attempt, source.node, source.rank):
                return page.text[offset : offset + limit]
        return b""

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        """Reports of a job not seen yet, in order of attempt and n. `seen` is the highest n taken, by attempt."""
        if stage := self._stages.get(job_id):
            yield from stage.cloud.read_new(stage.alias, seen)

    def _stage(self, key: str) -> _Stage | None:
        return self._stages.get(key.rpartition("-")[0])

    def _visitor(self, launch: Launch) -> _Stage:
        """A stage for a job that is in no part: somebody who looks around has submitted it."""
        climate = MarketParameters(seed=self._market.seed, provision_s=5.0, denial_rate=0.2)
        kind = kind_for(launch.task)
        if kind is not None:
            climate = replace(climate, zones=kind.zones, mtbf_s=900, notice_s=30)
        return _Stage(
            launch.job_id, kind, SimulatedCloud(self._clock, climate, VISITOR, LauncherBehavior())
        )

    def _priced(self, stage: _Stage, trail: Sequence[Placement]) -> tuple[Placement, ...]:
        if (kind := stage.kind) is None:
            return tuple(trail)
        return tuple(self._market.priced(placement, kind) for placement in trail)

    def _pages(self, key: str) -> list[DemoLog]:
        stage = self._stage(key)
        if stage is None or key not in stage.first_attempts:
            return []
        seen, now = stage.cloud.sighting(_aliased(key, stage)), self._clock.now()
        trail = self._priced(stage, seen.trail)
        said = itertools.groupby(
            stage.cloud.read_new(stage.alias, {}), lambda report: report.attempt
        )
        reports = {attempt: list(batch) for attempt, batch in said}
        return [
            page
            for attempt, placement in enumerate(trail, start=stage.first_attempts[key])
            for page in pages(attempt, placement, reports.get(attempt, ()), now)
        ]


def _aliased(key: str, stage: _Stage) -> str:
    """The key under which the job's own cloud knows a launch."""
    return f"{stage.alias}-{key.rpartition('-')[2]}"
