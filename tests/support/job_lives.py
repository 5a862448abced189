"""Lives of jobs on the simulated cloud, from submission to success, as events with their times."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from holdfast.domain.attempts import LatestPoint
from holdfast.domain.events import CapacityLost, Event, Finished, NodesReady
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.reports import Point, parse_report
from holdfast.domain.simulation.spot_market import MarketParameters, SpotMarket
from holdfast.launchers.simulated.program import SimulatedProgram
from holdfast.launchers.simulated.timeline import (
    LIKE_SKYPILOT,
    LaunchOrder,
    Timeline,
    TimelineStage,
)
from support.events import DAWN, launched, submitted

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class JobLife:
    """All events and points of a job."""

    events: tuple[Event, ...]
    """By the time at which they happened."""
    points: tuple[Point, ...]

    @property
    def started_at(self) -> datetime:
        """When it was submitted."""
        return self.events[0].at

    @property
    def ended_at(self) -> datetime:
        """When it succeeded."""
        return self.events[-1].at

    def until(self, now: datetime) -> tuple[Job, list[Event], Mapping[int, LatestPoint]]:
        """The job at a moment, its events, and the newest point of each attempt."""
        events = [event for event in self.events if event.at <= now]
        newest = {
            each.attempt: LatestPoint(step=each.step, at=each.at)
            for each in self.points
            if each.at <= now
        }
        return fold("job-1", events), events, newest


MARKETS_MTBF_S = (3 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S)
"""Median of the mean time between preemptions in three markets."""


def live(seed: int) -> JobLife:
    """A job on spot nodes whose market, place, size and speed are drawn."""
    draw = random.Random(seed)
    step_s = draw.uniform(20, 60)
    program = SimulatedProgram(
        total_steps=round(draw.uniform(6, 60) * HOUR_S / step_s),
        step_s=step_s,
        setup_s=draw.uniform(60, 300),
        restore_s=draw.uniform(10, 120),
        checkpoint_every_steps=round(draw.uniform(900, 3600) / step_s),
        progress_every_steps=5,
    )
    market = MarketParameters(
        seed=seed,
        provision_s=draw.lognormvariate(5.0, 0.6),
        denial_rate=draw.uniform(0, 0.7),
        mtbf_s=draw.choice(MARKETS_MTBF_S) * draw.lognormvariate(0, 0.8),
        zone_hazards=(0.5, 1.0, 2.0),
        hour_hazards=tuple(1.5 if 8 <= hour < 20 else 0.5 for hour in range(24)),
        no_notice_rate=0.5,
    )
    order = LaunchOrder(
        key="job-1-1",
        job_id="job-1",
        submitted_at=DAWN,
        first_attempt=1,
        nodes=1,
        max_failures=3,
        checkpoint=None,
    )
    timeline = Timeline(order, (), None, SpotMarket(market, "job-1-1"), program, LIKE_SKYPILOT)
    events: list[Event] = [submitted(infra="aws"), launched()]
    points: list[Point] = []
    for number, stage in enumerate(timeline.stages(), 1):
        for each in _facts(stage, number):
            points.append(each) if isinstance(each, Point) else events.append(each)
    return JobLife(tuple(sorted(events, key=lambda event: event.at)), tuple(points))


def _facts(stage: TimelineStage, attempt: int) -> Iterator[Event | Point]:
    placed = stage.placement
    assert placed, "the market has no end of its nodes"
    yield NodesReady(
        at=placed.ready_at,
        attempt=attempt,
        zone=placed.zone,
        nodes=1,
        micros_per_hour=placed.micros_per_hour,
        on_demand_micros_per_hour=placed.on_demand_micros_per_hour,
        simulated=True,
        is_spot=True,
    )
    for _, report in stage.reports:
        found = parse_report(report)
        assert found
        yield found
    if stage.ending:
        yield Finished(at=stage.ending.at, outcome=stage.ending.outcome)
    else:
        assert placed.lost_at
        assert placed.cause
        yield CapacityLost(at=placed.lost_at, attempt=attempt, cause=placed.cause)
