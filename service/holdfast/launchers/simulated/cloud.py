"""The simulated cloud: launches are timelines, and looking at one is reading it up to now."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from holdfast_worker.protocol.environment import Env
from holdfast_worker.protocol.reports import Report, ReportKind

from holdfast.domain.events import Outcome
from holdfast.domain.jobs.observation import (
    Denial,
    LaunchResult,
    LaunchStatus,
    Observation,
    Placement,
)
from holdfast.domain.simulation.spot_market import MarketParameters, SpotMarket
from holdfast.errors import NotPossibleNow
from holdfast.launchers.simulated.program import Saved, SimulatedProgram, saved_in
from holdfast.launchers.simulated.timeline import (
    LauncherBehavior,
    Order,
    Reclaim,
    Stage,
    Timeline,
    reclaim,
    request_exit,
)
from holdfast.ports import Clock, Launch, LogSource


@dataclass(slots=True)
class _Course:
    """One launch: its timeline, read as far as was needed, and begun anew when somebody interferes."""

    timeline: Timeline
    forgotten_at: datetime | None = None
    read: list[Stage] = field(default_factory=list)
    rest: Iterator[Stage] = field(init=False)

    def __post_init__(self) -> None:
        self.rest = self.timeline.stages()

    def change(self, timeline: Timeline) -> None:
        """Go on with `timeline`, which differs from the old one only after now."""
        self.timeline, self.read, self.rest = timeline, [], timeline.stages()

    def until(self, now: datetime) -> tuple[datetime, list[Stage]]:
        """The time up to which the launch has a course, and all stages up to there; the last reaches beyond it."""
        end = min(now, self.forgotten_at or now)
        while not self.read or ((left_at := _left_at(self.read[-1])) and left_at <= end):
            stage = next(self.rest, None)
            if stage is None:
                break
            self.read.append(stage)
        return end, self.read


class SimulatedCloud:
    """Launcher, market and inbox of reports in one. It is the outside world: it outlives a restart of the service."""

    def __init__(
        self,
        clock: Clock,
        climate: MarketParameters,
        program: SimulatedProgram,
        habits: LauncherBehavior = LauncherBehavior(),
    ) -> None:
        self._clock = clock
        self._climate = climate
        self._program = program
        self._habits = habits
        self._courses: dict[str, _Course] = {}
        self._cancelled: dict[str, datetime] = {}
        self._guard = threading.RLock()
        """Reports are taken from threads while the loop looks."""

    @property
    def saves_on_cancel(self) -> bool:
        """Whether `cancel` gives the worker time to save its work."""
        return self._habits.saves_on_cancel

    async def submit(self, launch: Launch) -> None:
        """Start `launch.key` unless it was started or cancelled before."""
        with self._guard:
            if launch.key in self._courses or launch.key in self._cancelled:
                return
            order = Order(
                key=launch.key,
                job_id=launch.job_id,
                submitted_at=self._clock.now(),
                first_attempt=launch.first_attempt,
                nodes=int(launch.task.get("num_nodes") or 1),
                max_failures=launch.max_failures,
                found=self._found(launch),
            )
            weather = SpotMarket(self._climate.met_by(launch.task), launch.key)
            timeline = Timeline(order, (), None, weather, self._program, self._habits)
            self._courses[launch.key] = _Course(timeline)

    async def look(self, key: str) -> Observation:
        """What stands under `key` now."""
        return self.sighting(key)

    def changes_next(self, key: str) -> datetime | None:
        """When `look` will show something else of `key` by itself; None: never, as far as is known now."""
        with self._guard:
            course = self._courses.get(key)
            if course is None or course.forgotten_at is not None:
                return None
            now, stages = course.until(self._clock.now())
            return min((at for stage in stages for at in _moments(stage) if at > now), default=None)

    async def cancel(self, key: str) -> None:
        """Ask for an end of `key`; what was never submitted will then never start."""
        with self._guard:
            if key in self._cancelled:
                return
            self._cancelled[key] = self._clock.now()
            if course := self._courses.get(key):
                course.change(replace(course.timeline, cancelled_at=self._cancelled[key]))

    async def preempt(self, key: str, *, node: int | None, notice_s: float | None) -> None:
        """Take one node (None: the last one) of the standing placement.

        Raises:
            NotPossibleNow: nothing stands under this key, or it has no such node.
        """
        with self._guard:
            seen, now = self.sighting(key), self._clock.now()
            if seen.standing is not LaunchStatus.UP:
                raise NotPossibleNow(f"{key} has no standing nodes; it is {seen.standing}")
            nodes = seen.trail[-1].nodes
            chosen = nodes - 1 if node is None else node
            if not 0 <= chosen < nodes:
                raise NotPossibleNow(f"{key} has no node {chosen}; its nodes are 0 to {nodes - 1}")
            self._recall(key, reclaim(now, now + timedelta(seconds=notice_s or 0), node=chosen))

    def ask_to_leave(self, key: str) -> None:
        """Tell the worker what the answer to its reports says: save, and leave. It hears that once in a placement."""
        with self._guard:
            seen = self.sighting(key)
            if seen.standing is LaunchStatus.UP:
                told = self._courses[key].timeline.reclaims
                if not any(recall.at >= seen.since for recall in told):
                    self._recall(key, request_exit(self._clock.now()))

    def _recall(self, key: str, recall: Reclaim) -> None:
        timeline = self._courses[key].timeline
        self._courses[key].change(replace(timeline, reclaims=(*timeline.reclaims, recall)))

    def forget(self, key: str) -> None:
        """Lose a launch, as a cloud does whose controller has died: nothing of it runs from now on."""
        with self._guard:
            course = self._courses[key]
            course.forgotten_at = course.forgotten_at or self._clock.now()

    async def logs(self, key: str) -> Sequence[LogSource]:
        """No logs: no program has run."""
        del key
        return ()

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """Nothing, as there are no logs."""
        del key, source, offset, limit
        return b""

    def read_new(self, job_id: str, seen: Mapping[int, int]) -> Iterator[Report]:
        """Reports of a job not seen yet, in order of attempt and n. `seen` is the highest n taken, by attempt."""
        with self._guard:
            news = [
                report for report in self._reports(job_id) if report.n > seen.get(report.attempt, 0)
            ]
        yield from news

    def sighting(self, key: str) -> Observation:
        """The same as `look`, for threads."""
        with self._guard:
            course = self._courses.get(key)
            if course is not None:
                return _sight(course, self._clock.now())
            at = self._cancelled.get(key)
        if at is not None:
            ending = LaunchResult(
                at=at, outcome=Outcome.CANCELLED, detail="cancelled before it began"
            )
            return Observation(standing=LaunchStatus.ENDED, since=at, ending=ending)
        return Observation(standing=LaunchStatus.ABSENT, since=self._clock.now())

    def _reports(self, job_id: str) -> Iterator[Report]:
        """All that the workers of a job have said so far; courses are in order of their attempts."""
        for course in self._courses.values():
            if course.timeline.order.job_id == job_id:
                end, stages = course.until(self._clock.now())
                for stage in stages:
                    yield from (report for at, report in stage.reports if at <= end)

    def _found(self, launch: Launch) -> Saved | None:
        """With which checkpoint a launch begins: the newest of its job, else of the one from which that goes on."""
        if own := self._newest_checkpoint(launch.job_id):
            return own
        forebear = (launch.task.get("envs") or {}).get(Env.FROM)
        lent = self._newest_checkpoint(forebear) if forebear else None
        return replace(lent, name=f"{forebear}/{lent.name}") if lent else None

    def _newest_checkpoint(self, job_id: str) -> Saved | None:
        commits = (
            saved_in(report.body)
            for report in self._reports(job_id)
            if report.kind == ReportKind.CHECKPOINT_COMMITTED
        )
        return max(commits, key=lambda saved: saved.step, default=None)


def _sight(course: _Course, now: datetime) -> Observation:
    """The course as it looks now: what lies in the future is not told."""
    end, stages = course.until(now)
    denials: list[Denial] = []
    trail: list[Placement] = []
    ending: LaunchResult | None = None
    standing, since = LaunchStatus.WAITING, course.timeline.order.submitted_at
    for stage in stages:
        denials += [denial for denial in stage.denials if denial.at <= end]
        if stage.placement and stage.placement.ready_at <= end:
            trail.append(_as_of(end, stage.placement))
            standing, since = LaunchStatus.UP, stage.placement.ready_at
            if lost_at := trail[-1].lost_at:
                standing, since = LaunchStatus.WAITING, lost_at
        if stage.ending and stage.ending.at <= end:
            ending = stage.ending
            standing, since = LaunchStatus.ENDED, ending.at
    if ending is None and course.forgotten_at is not None:
        standing, since = LaunchStatus.FORGOTTEN, course.forgotten_at
    return Observation(
        standing=standing,
        since=since,
        placements=len(trail),
        trail=tuple(trail),
        denials=tuple(denials),
        ending=ending,
    )


def _as_of(now: datetime, placement: Placement) -> Placement:
    if placement.lost_at is None or placement.lost_at <= now:
        return placement
    return replace(placement, lost_at=None, cause=None, detail="")


def _moments(stage: Stage) -> Iterator[datetime]:
    """When a look at a stage begins to show something new."""
    yield from (denial.at for denial in stage.denials)
    if stage.placement:
        yield stage.placement.ready_at
        if stage.placement.lost_at:
            yield stage.placement.lost_at
    if stage.ending:
        yield stage.ending.at


def _left_at(stage: Stage) -> datetime | None:
    """When the next stage begins; None when there is none."""
    return stage.placement.lost_at if stage.placement else None
