"""The simulated cloud: a launch is a timeline, observed at the current time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from holdfast_worker.protocol.environment import Env
from holdfast_worker.protocol.reports import Report, ReportKind

from holdfast.domain.events import Outcome
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.observation import (
    Denial,
    LaunchResult,
    LaunchStatus,
    Observation,
    Placement,
)
from holdfast.domain.planning.recorded_places import PlaceHistory
from holdfast.domain.simulation.spot_market import MarketParameters, SpotMarket
from holdfast.errors import NotPossibleNow
from holdfast.launchers.simulated.program import (
    SimulatedCheckpoint,
    SimulatedProgram,
    checkpoint_in,
)
from holdfast.launchers.simulated.timeline import (
    LauncherBehavior,
    LaunchOrder,
    Reclaim,
    Timeline,
    TimelineStage,
    reclaim,
    request_exit,
)
from holdfast.ports import Clock, Launch, LogSource, NodeOffer, RecordedPlaces


@dataclass(slots=True)
class _SimulatedLaunch:
    """A launch with its timeline, read as far as needed and replaced when its course changes."""

    timeline: Timeline
    forgotten_at: datetime | None = None
    read: list[TimelineStage] = field(default_factory=list)
    remaining: Iterator[TimelineStage] = field(init=False)

    def __post_init__(self) -> None:
        self.remaining = self.timeline.stages()

    def replace_timeline(self, timeline: Timeline) -> None:
        """Continue with `timeline`, which differs from the old one only in the future."""
        self.timeline, self.read, self.remaining = timeline, [], timeline.stages()

    def stages_until(self, now: datetime) -> tuple[datetime, list[TimelineStage]]:
        """Return the time up to which the course is known, and all stages until then.

        The last stage extends beyond it.
        """
        end = min(now, self.forgotten_at or now)
        while not self.read or ((left_at := _lost_at(self.read[-1])) and left_at <= end):
            stage = next(self.remaining, None)
            if stage is None:
                break
            self.read.append(stage)
        return end, self.read


class SimulatedCloud:
    """Simulated launcher, spot market and report inbox.

    As the outside world, it outlives a restart of the service.
    """

    def __init__(
        self,
        clock: Clock,
        climate: MarketParameters,
        program: SimulatedProgram,
        habits: LauncherBehavior = LauncherBehavior(),
    ) -> None:
        self._clock = clock
        self._climate = climate
        self._history = PlaceHistory(climate.recording, climate) if climate.recording else None
        self._program = program
        self._behavior = habits
        self._launches: dict[str, _SimulatedLaunch] = {}
        self._cancelled: dict[str, datetime] = {}
        self._lock = threading.RLock()
        """Protects against threads that read reports while the event loop observes."""

    @property
    def saves_on_cancel(self) -> bool:
        """Whether `cancel` gives the worker time to save."""
        return self._behavior.saves_on_cancel

    def node_offers(self, place: str) -> Sequence[NodeOffer]:
        """Return the prices in all zones of the simulated market, whatever place the job names."""
        del place
        market = self._climate
        return [
            NodeOffer(
                place=f"{Engine.LOCAL}/{zone}",
                spot_micros=market.spot_micros,
                on_demand_micros=market.on_demand_micros,
            )
            for zone in market.zones
        ]

    async def submit(self, launch: Launch) -> None:
        """Start `launch.key` unless it was started or cancelled before.

        Raises:
            LaunchRefused: it asks for zones that the market does not have.
        """
        with self._lock:
            if launch.key in self._launches or launch.key in self._cancelled:
                return
            nodes = int(launch.task.get("num_nodes") or 1)
            market = SpotMarket(self._climate.for_task(launch.task), launch.key, nodes)
            order = LaunchOrder(
                key=launch.key,
                job_id=launch.job_id,
                submitted_at=self._clock.now(),
                first_attempt=launch.first_attempt,
                nodes=nodes,
                max_failures=launch.max_failures,
                checkpoint=self._initial_checkpoint(launch),
            )
            timeline = Timeline(order, (), None, market, self._program, self._behavior)
            self._launches[launch.key] = _SimulatedLaunch(timeline)

    async def observe(self, key: str) -> Observation:
        """Return the current observation of `key`."""
        return self.observe_sync(key)

    def next_change_at(self, key: str) -> datetime | None:
        """Return when the observation of `key` changes next by itself; None: never, as far as known."""
        with self._lock:
            course = self._launches.get(key)
            if course is None or course.forgotten_at is not None:
                return None
            now, stages = course.stages_until(self._clock.now())
            return min(
                (at for stage in stages for at in _change_times(stage) if at > now), default=None
            )

    async def cancel(self, key: str) -> None:
        """Request the end of `key`; a launch that was not submitted will never start."""
        with self._lock:
            if key in self._cancelled:
                return
            self._cancelled[key] = self._clock.now()
            if course := self._launches.get(key):
                course.replace_timeline(replace(course.timeline, cancelled_at=self._cancelled[key]))

    async def preempt(self, key: str, *, node: int | None, notice_s: float | None) -> None:
        """Preempt one node (None: the last) of the running placement.

        Raises:
            NotPossibleNow: no placement is running under this key, or it has no such node.
        """
        with self._lock:
            seen, now = self.observe_sync(key), self._clock.now()
            if seen.status is not LaunchStatus.UP:
                raise NotPossibleNow(f"{key} has no running nodes; its status is {seen.status}")
            nodes = seen.recent_placements[-1].nodes
            chosen = nodes - 1 if node is None else node
            if not 0 <= chosen < nodes:
                raise NotPossibleNow(f"{key} has no node {chosen}; its nodes are 0 to {nodes - 1}")
            self._add_reclaim(
                key, reclaim(now, now + timedelta(seconds=notice_s or 0), node=chosen)
            )

    async def replaces_alone(self, key: str, *, node: int | None) -> bool:  # noqa: ARG002 - the port
        """Return False: a simulated placement is always lost as a whole."""
        return False

    def request_shutdown(self, key: str) -> None:
        """Ask the worker to save and exit, once per placement, like the response to a report."""
        with self._lock:
            seen = self.observe_sync(key)
            if seen.status is LaunchStatus.UP:
                reclaims = self._launches[key].timeline.reclaims
                if not any(recall.at >= seen.since for recall in reclaims):
                    self._add_reclaim(key, request_exit(self._clock.now()))

    def _add_reclaim(self, key: str, recall: Reclaim) -> None:
        timeline = self._launches[key].timeline
        self._launches[key].replace_timeline(
            replace(timeline, reclaims=(*timeline.reclaims, recall))
        )

    def forget(self, key: str) -> None:
        """Lose a launch, like a cloud whose controller has died: all its processes end now."""
        with self._lock:
            course = self._launches[key]
            course.forgotten_at = course.forgotten_at or self._clock.now()

    def recorded_market(self, at: datetime, *, nodes: int = 1) -> RecordedPlaces | None:
        """Return the market at a moment for launches of `nodes` nodes; None if it is no recording."""
        if self._history is None:
            return None
        return RecordedPlaces(tick_s=self._history.tick_s, places=self._history.states(at, nodes))

    async def logs(self, key: str) -> Sequence[LogSource]:
        """Return no logs: no program has run."""
        del key
        return ()

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """Return no bytes, because there are no logs."""
        del key, source, offset, limit
        return b""

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        """Yield new reports of a job by attempt and number.

        `seen` is the highest number read, by attempt.
        """
        with self._lock:
            news = [
                report for report in self._reports(job_id) if report.n > seen.get(report.attempt, 0)
            ]
        yield from news

    def observe_sync(self, key: str) -> Observation:
        """Return the same observation as `observe`, for threads."""
        with self._lock:
            course = self._launches.get(key)
            if course is not None:
                return _observation(course, self._clock.now())
            at = self._cancelled.get(key)
        if at is not None:
            ending = LaunchResult(
                at=at, outcome=Outcome.CANCELLED, detail="cancelled before it began"
            )
            return Observation(status=LaunchStatus.ENDED, since=at, result=ending)
        return Observation(status=LaunchStatus.ABSENT, since=self._clock.now())

    def _reports(self, job_id: str) -> Iterator[Report]:
        """Yield all reports of a job's workers so far, in order of attempts."""
        for course in self._launches.values():
            if course.timeline.order.job_id == job_id:
                end, stages = course.stages_until(self._clock.now())
                for stage in stages:
                    yield from (report for at, report in stage.reports if at <= end)

    def _initial_checkpoint(self, launch: Launch) -> SimulatedCheckpoint | None:
        """Return the newest checkpoint of a launch's job, or of the job it continues."""
        if own := self._newest_checkpoint(launch.job_id):
            return own
        forebear = (launch.task.get("envs") or {}).get(Env.FROM)
        lent = self._newest_checkpoint(forebear) if forebear else None
        return replace(lent, name=f"{forebear}/{lent.name}") if lent else None

    def _newest_checkpoint(self, job_id: str) -> SimulatedCheckpoint | None:
        commits = (
            checkpoint_in(report.body)
            for report in self._reports(job_id)
            if report.kind == ReportKind.CHECKPOINT_COMMITTED
        )
        return max(commits, key=lambda saved: saved.step, default=None)


def _observation(course: _SimulatedLaunch, now: datetime) -> Observation:
    """Return the observation of a course at `now`, without its future."""
    end, stages = course.stages_until(now)
    denials: list[Denial] = []
    trail: list[Placement] = []
    ending: LaunchResult | None = None
    status, since = LaunchStatus.WAITING, course.timeline.order.submitted_at
    for stage in stages:
        denials += [denial for denial in stage.denials if denial.at <= end]
        if stage.placement and stage.placement.ready_at <= end:
            trail.append(_as_of(end, stage.placement))
            status, since = LaunchStatus.UP, stage.placement.ready_at
            if lost_at := trail[-1].lost_at:
                status, since = LaunchStatus.WAITING, lost_at
        if stage.ending and stage.ending.at <= end:
            ending = stage.ending
            status, since = LaunchStatus.ENDED, ending.at
    if ending is None and course.forgotten_at is not None:
        status, since = LaunchStatus.FORGOTTEN, course.forgotten_at
    return Observation(
        status=status,
        since=since,
        placements=len(trail),
        recent_placements=tuple(trail),
        denials=tuple(denials),
        result=ending,
    )


def _as_of(now: datetime, placement: Placement) -> Placement:
    if placement.lost_at is None or placement.lost_at <= now:
        return placement
    return replace(placement, lost_at=None, cause=None, detail="")


def _change_times(stage: TimelineStage) -> Iterator[datetime]:
    """Yield when the observation of a stage changes."""
    yield from (denial.at for denial in stage.denials)
    if stage.placement:
        yield stage.placement.ready_at
        if stage.placement.lost_at:
            yield stage.placement.lost_at
    if stage.ending:
        yield stage.ending.at


def _lost_at(stage: TimelineStage) -> datetime | None:
    """Return when the next stage begins; None if there is none."""
    return stage.placement.lost_at if stage.placement else None
