"""Plans in the real reconciler, journal and ledger choose and cost what the simulator says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pytest
from holdfast.clock import SIMULATION_START
from holdfast.controller.reconciler import PollIntervals, Reconciler
from holdfast.domain.events import CapacityType, Guard, MarketState, Planned, Submitted
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.planning.backtest import POLICIES
from holdfast.domain.planning.recorded_places import recording_of
from holdfast.domain.planning.replay import Runs, replay
from holdfast.domain.planning.situation import Choice, Held, Indices, Situation
from holdfast.domain.planning.traces import Trace
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.launchers.simulated import SimulatedClock, SimulatedCloud, SimulatedProgram
from holdfast.market.markets import Markets
from holdfast.market.planners import Planners
from holdfast.pricing import open_catalog
from holdfast.rendering import render
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.secrets import Secrets
from sqlalchemy import Engine
from support.spot_traces import (
    AWS_2022,
    ON_DEMAND_USD,
    SPOT_USD,
    markets_of,
    recorded,
    terms_of,
    trace_of,
    windows_of,
)

STEP_S, CHANGEOVER_S, WORK_S = 60.0, 120.0, 6 * 3600.0
PROGRAM: Final = SimulatedProgram(
    total_steps=int(WORK_S / STEP_S),
    step_s=STEP_S,
    setup_s=CHANGEOVER_S,
    restore_s=0.0,
    checkpoint_every_steps=1,
    stall_s=0.0,
    upload_s=0.0,
    progress_every_steps=1_000_000,
)
JOB_FILE: Final = """
name: tiny
resources: {{infra: local}}
run: holdfast-worker run train.py
holdfast:
  checkpoint: {{store: "s3://bucket/prefix", every: 1 step}}
  limits: {{deadline: {deadline_s}s}}
  plan: {{work: {work_s}s, policy: {policy}, margin: {margin}}}
"""


OVER: Final = frozenset({State.ENDED, State.PAUSED})


class KnownStarts(Markets):
    """Markets in which a start takes as long as in the simulator."""

    def state(self, spec: JobSpec, now: datetime) -> MarketState:
        state = super().state(spec, now)
        return replace(state, changeover_s=CHANGEOVER_S, on_demand_wait_s=0.0)


class PlannedJob:
    """A job with a plan in a recorded market, whose reconciler is called whenever something may change."""

    def __init__(
        self,
        engine: Engine,
        trace: Trace,
        start: int,
        *,
        policy: str,
        deadline_s: float,
        margin: str = "0",
    ) -> None:
        self.clock = SimulatedClock()
        begin = SIMULATION_START - timedelta(seconds=start * trace.gap_s)
        market = MarketParameters(
            provision_s=0.0,
            notice_s=0.0,
            spot_micros=round(SPOT_USD * 1e6),
            on_demand_micros=round(ON_DEMAND_USD * 1e6),
            recording=recording_of([trace], None, begin),
        )
        self.cloud = SimulatedCloud(self.clock, market, PROGRAM)
        self.journal = Journal(engine, self.clock)
        self.job_id = f"{trace.name}-{start}-{policy}-{deadline_s:g}"
        self.tick_s = trace.gap_s
        prices = open_catalog((), self.clock, asks_aws=False)
        self.planners = Planners(KnownStarts(engine, prices, {Kind.LOCAL: self.cloud}))
        self.reconciler = Reconciler(
            journal=self.journal,
            leases=LeaseTable(engine),
            tokens=ServiceTokens(engine, b"secret"),
            launchers={Kind.LOCAL: self.cloud},
            inbox=self.cloud,
            clock=self.clock,
            intervals=PollIntervals(),
            worker_url="http://127.0.0.1",
            secrets=Secrets(engine, b"secret"),
            planners=self.planners,
        )
        self.away_s = (0.0, 0.0)
        text = JOB_FILE.format(
            policy=policy, deadline_s=int(deadline_s), work_s=int(WORK_S), margin=margin
        )
        parsed = parse_job_file(text)
        self.journal.submit(
            self.job_id,
            Submitted(
                at=self.clock.now(),
                name=parsed.spec.name,
                spec=parsed.spec.model_dump(mode="json"),
                task=render(parsed.spec).text,
            ),
        )

    @property
    def job(self) -> Job:
        return self.journal.read(self.job_id)

    def recomputed_plans(self) -> int:
        """Compute each recorded plan again from the log and its market; the number of plans."""
        log = [item.event for item in self.journal.events(self.job_id)]
        spec = JobSpec.from_stored(self.journal.submission(self.job_id).spec)
        count = 0
        for number, fact in enumerate(log):
            if isinstance(fact, Planned):
                before = fold(self.job_id, log[:number])
                planner = self.planners.over(spec, fact.market)
                assert planner.with_forecast(before, planner.plan(before, fact.at)) == fact
                count += 1
        return count

    def settle(self) -> Job:
        """Call the reconciler until it has nothing more to do at this moment."""
        passed_s = (self.clock.now() - SIMULATION_START).total_seconds()
        while not self.away_s[0] <= passed_s < self.away_s[1]:
            before = self.job
            after = asyncio.run(self.reconciler.step(self.job_id))
            if after.seq == before.seq and after.state is not State.MOVING:
                break
        return self.job

    def run(self) -> list[Held]:
        """Run the job to its end; what it held in each tick."""
        held: list[Held] = []
        while True:
            job = self.settle()
            if job.state in OVER:
                return held
            held.append(held_by(job))
            end = self.clock.now() + timedelta(seconds=self.tick_s)
            while (now := self.clock.now()) < end:
                change = self.cloud.next_change_at(job.launch_key) if job.is_launched else None
                due = min(end, change or end)
                self.clock.advance((due - now).total_seconds())
                if due < end:
                    job = self.settle()
                    if job.state in OVER:
                        return held


def held_by(job: Job) -> Held:
    if not job.placed or job.placement is None:
        return Held.NOTHING
    return Held.SPOT if job.placement.capacity is CapacityType.SPOT else Held.ON_DEMAND


@dataclass
class Choices:
    """What a simulated job holds in each tick."""

    held: list[Held]

    def __call__(self, tick: int, situation: Situation, choice: Choice, rows: Indices) -> None:
        assert len(self.held) == tick
        self.held.append(Held(int(choice.holds[0])))


def simulated(
    trace: Trace, start: int, *, policy: str, deadline_s: float
) -> tuple[list[Held], Runs]:
    """The same job in the simulator."""
    kind = POLICIES[policy]
    assert kind, "the policy looks into no future"
    choices = Choices([])
    windows = windows_of(start, work_s=WORK_S, deadline_s=deadline_s, changeover_s=CHANGEOVER_S)
    terms = terms_of(on_demand_usd_per_hour=ON_DEMAND_USD)
    runs = replay(kind(), markets_of(trace, spot_usd=SPOT_USD), windows, terms, [choices])
    return choices.held, runs


def windows(count: int) -> list[tuple[Trace, int, float]]:
    """Windows of recordings, each with the time until its deadline."""
    traces = recorded(AWS_2022)
    found = []
    for number in range(count):
        trace = traces[number % len(traces)]
        deadline_s = WORK_S * (1.1, 1.25, 1.5)[number % 3]
        last = len(trace.available) - round(deadline_s / trace.gap_s) - 1
        found.append((trace, round(last * (number + 1) / (count + 1)), deadline_s))
    return found


@pytest.mark.parametrize(("policy", "count"), [("threshold", 3), ("holdfast", 3)])
def test_reconciler_chooses_what_the_simulator_does(
    sqlite: Engine, policy: str, count: int
) -> None:
    check_windows(sqlite, policy, windows(count))


@pytest.mark.full
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("policy", ["holdfast", "threshold"])
def test_fifty_windows_are_chosen_and_paid_alike(sqlite: Engine, policy: str, part: int) -> None:
    chosen = windows(50)[policy == "holdfast" :: 2]
    check_windows(sqlite, policy, chosen[part::5])


@pytest.mark.full
@pytest.mark.parametrize("policy", ["uniform-progress", "greedy"])
def test_published_policies_are_chosen_and_paid_alike(sqlite: Engine, policy: str) -> None:
    check_windows(sqlite, policy, windows(6))


def check_windows(engine: Engine, policy: str, chosen: list[tuple[Trace, int, float]]) -> None:
    for trace, start, deadline_s in chosen:
        expected, runs = simulated(trace, start, policy=policy, deadline_s=deadline_s)

        job = PlannedJob(engine, trace, start, policy=policy, deadline_s=deadline_s)
        held = job.run()

        where = f"{job.job_id}"
        assert signs(held) == signs(expected), where
        ended = job.job
        assert ended.outcome == "succeeded", where
        assert (ended.updated_at - ended.submitted_at).total_seconds() <= deadline_s, where
        paid_usd = ended.account.paid_micros / 1e6
        tick_usd = ON_DEMAND_USD * trace.gap_s / 3600
        changeovers = int(runs.changeovers[0])
        assert job.recomputed_plans() >= 1, where
        assert abs(paid_usd - float(runs.cost_usd[0])) <= tick_usd * (changeovers + 1), where


def signs(held: list[Held]) -> str:
    return "".join(".sd"[each] for each in held)


@pytest.mark.parametrize("margin_s", [0, 600, 3600])
def test_outage_at_the_net_costs_its_time_less_the_margin(sqlite: Engine, margin_s: int) -> None:
    nothing = trace_of("0" * 100)
    deadline_s = 1.5 * WORK_S
    net_s = deadline_s - WORK_S - CHANGEOVER_S - margin_s
    job = PlannedJob(
        sqlite, nothing, 0, policy="greedy", deadline_s=deadline_s, margin=f"{margin_s}s"
    )
    job.away_s = (net_s - 600, net_s + 3000)

    job.run()

    after = job.job
    missing_s = WORK_S - (after.last_checkpoint_step or 0) * STEP_S
    assert missing_s <= max(0, 3600 - margin_s)
    assert after.state is (State.PAUSED if missing_s else State.ENDED)
    if missing_s:
        assert after.guard is Guard.DEADLINE
        [late] = [
            e.event.forecast.late
            for e in job.journal.events(job.job_id)
            if isinstance(e.event, Planned)
            and e.event.forecast
            and e.event.capacity is CapacityType.ON_DEMAND
        ]
        assert late == 1.0
