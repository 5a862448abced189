"""Overspending during faults is bounded by the time to save and to reach the nodes.

Jobs run in a simulated cloud with their own prices, losses and clocks. The service crashes now and then, and
the launcher is unreachable for up to half an hour at a time. The bound is

    cap + highest rate * (120 s to save + two polls + the longest outage)

since new nodes are observed at the next poll, or at the one after it if that one crashes. During an outage,
the guard still trips by recorded events, and a reachable worker exits; but nodes cost money until the
launcher can be reached.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from fault_injection.faulty_service import spans
from holdfast.domain.budgets import Budget, BudgetBalance, BudgetScope, Month, paid_between
from holdfast.domain.events import Event, Guard, GuardTripped, NodesReady, Paused, Submitted
from holdfast.domain.jobfile.limits import MICROS_PER_USD, Limits
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.guards import SAVE_GRACE_S
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance, create_job, fold
from holdfast.domain.jobs.reconcile import (
    Effect,
    ReconcileContext,
    decide,
    decide_without_observation,
    ms_until_decision,
)
from holdfast.domain.jobs.reports import Point, parse_report
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import NotPossibleNow
from holdfast.launchers.simulated import (
    LIKE_SKYPILOT,
    LauncherBehavior,
    SimulatedCloud,
    SimulatedProgram,
)
from holdfast.ports import Launch
from support.fakes import FixedClock
from support.repetitions import FAULT_SEEDS

LONG = SimulatedProgram(
    total_steps=10_000,
    step_s=30,
    checkpoint_every_steps=20,
    upload_s=10,
    stall_s=1,
    progress_every_steps=1000,
)
LONGEST_OUTAGE_S = 1800
"""Longest outage of the launcher."""
DAYS_S = 86_400


@dataclass
class JobRun:
    """One job with its events and folded state."""

    id: str
    cloud: SimulatedCloud
    limits: Limits
    log: list[Event] = field(default_factory=list)
    imported: dict[int, int] = field(default_factory=dict)
    due_s: float = 0.0
    """Time of the next poll, in seconds since the start."""
    job: Job = field(init=False)

    def append(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Submitted):
                self.job = create_job(self.id, event)
            else:
                self.job = advance(self.job, event)
            self.log.append(event)

    def new_events(self) -> Iterator[Event]:
        for report in list(self.cloud.read_new(self.id, self.imported)):
            self.imported[report.attempt] = report.n
            if not isinstance(reported := parse_report(report), Point):
                yield reported


class Simulation:
    """Some jobs with their reconciler, and optionally a common budget."""

    def __init__(self, seed: int, *, caps: bool, budget_usd: float | None, outages: bool) -> None:
        self.rng = random.Random(seed)
        self.clock = FixedClock()
        self.began = self.clock.now()
        self.outages = outages
        self.poll_s = self.rng.choice([15, 60, 120])
        self.behavior = self.rng.choice([LauncherBehavior(), LIKE_SKYPILOT])
        self.outage_until_s = self.next_outage_s = self.rng.uniform(0, 3600)
        self.was_reached = False
        self.budget = budget_usd and Budget(
            scope=BudgetScope.PROJECT, name="nlp", monthly_micros=round(budget_usd * MICROS_PER_USD)
        )
        self.runs = [self._new_run(seed, n, caps=caps) for n in range(self.rng.randint(1, 4))]

    def _new_run(self, seed: int, number: int, *, caps: bool) -> JobRun:
        market = MarketParameters(
            seed=seed * 10 + number,
            provision_s=self.rng.choice([5.0, 60.0]),
            denial_rate=self.rng.choice([0.0, 0.5]),
            mtbf_s=self.rng.choice([0.0, 1000.0, 3000.0]),
            notice_s=self.rng.choice([0.0, 30.0]),
            spot_micros=self.rng.choice([4_000_000, 20_000_000, 98_000_000]),
        )
        cap = round(self.rng.uniform(0.1, 2) * market.spot_micros / MICROS_PER_USD, 2)
        limits = (
            Limits(max_cost_usd=cap, max_fruitless=1000) if caps else Limits(max_fruitless=1000)
        )
        cloud = SimulatedCloud(self.clock, market, LONG, self.behavior)
        run = JobRun(f"job{number}", cloud, limits)
        run.append([Submitted(at=self.clock.now(), name="job", spec={}, task="")])
        return run

    @property
    def now_s(self) -> float:
        return (self.clock.now() - self.began).total_seconds()

    def run_to_end(self) -> None:
        """Run until all jobs are paused or ended."""
        while any(run.job.state not in {State.PAUSED, State.ENDED} for run in self.runs):
            run = min(self._unfinished(), key=lambda each: each.due_s)
            self.clock.advance(max(0.001, run.due_s - self.now_s))
            self._update_outage()
            asyncio.run(self._step(run))
            assert self.now_s < 5 * DAYS_S, "it never came to an end"

    def _unfinished(self) -> list[JobRun]:
        return [e for e in self.runs if e.job.state not in {State.PAUSED, State.ENDED}]

    def _update_outage(self) -> None:
        if self.outages and self.now_s >= self.next_outage_s:
            self.outage_until_s = self.now_s + self.rng.uniform(10, LONGEST_OUTAGE_S)
            self.next_outage_s = self.outage_until_s + self.rng.uniform(600, 7200)

    @property
    def is_unreachable(self) -> bool:
        return self.outages and self.now_s < self.outage_until_s

    async def _step(self, run: JobRun) -> None:
        """Run one step of the reconciler; a crash ends it early."""
        context = ReconcileContext(
            limits=run.limits,
            has_store=True,
            budgets=self._balances(),
            saves_on_cancel=run.cloud.saves_on_cancel,
        )
        job = run.job
        if self.is_unreachable:
            run.append(list(run.new_events()))
            self._record(run, decide_without_observation(run.job, self.clock.now(), context).record)
            self._ask_to_leave(run)
        elif not self._crashes():
            seen = await run.cloud.observe(job.launch_key) if job.is_launched else None
            run.append(list(run.new_events()))
            plan = decide(run.job, seen, self.clock.now(), context)
            self._record(run, plan.record)
            self._ask_to_leave(run)
            if not self._crashes():
                await self._act(run, plan.effect)
        self._plan_next(run, context)

    def _record(self, run: JobRun, facts: Sequence[Event]) -> None:
        run.append(facts)
        self.was_reached |= any(
            isinstance(fact, GuardTripped) and fact.guard is Guard.BUDGET for fact in facts
        )

    def _ask_to_leave(self, run: JobRun) -> None:
        if run.job.is_leaving and run.job.is_launched:
            run.cloud.request_shutdown(run.job.launch_key)

    async def _act(self, run: JobRun, effect: Effect | None) -> None:
        if effect is Effect.SUBMIT:
            job = run.job
            first, nodes = job.attempts_before_launch + 1, {"num_nodes": self.rng.randint(1, 3)}
            await run.cloud.submit(
                Launch(
                    key=job.launch_key,
                    job_id=job.id,
                    first_attempt=first,
                    task=nodes,
                    max_failures=99,
                )
            )
        elif effect is Effect.CANCEL:
            await run.cloud.cancel(run.job.launch_key)

    def _plan_next(self, run: JobRun, context: ReconcileContext) -> None:
        wait_s: float = self.poll_s
        within_ms = ms_until_decision(run.job, self.clock.now(), context)
        if within_ms is not None:
            wait_s = min(wait_s, max(0, within_ms) / 1000)
        run.due_s = self.now_s + wait_s

    def _crashes(self) -> bool:
        return self.rng.random() < 0.02

    def _balances(self) -> tuple[BudgetBalance, ...]:
        if not self.budget:
            return ()
        now, month = self.clock.now(), Month.containing(self.clock.now())
        spent = sum(paid_between(run.log, month.start, now) for run in self.runs)
        rate = sum(run.job.account.micros_per_hour for run in self.runs)
        return (
            BudgetBalance(budget=self.budget, at=now, spent_micros=spent, micros_per_hour=rate, was_reached=self.was_reached),
        )  # fmt: skip

    def paid_micros(self, run: JobRun) -> int:
        """The actual cost of a job."""
        keys = [f"{run.id}-{number}" for number in range(1, run.job.launch + 1)]
        launches = [asyncio.run(run.cloud.observe(key)) for key in keys]
        return sum(span.micros for span in spans(launches))

    def highest_rate(self, run: JobRun) -> int:
        return max((e.micros_per_hour for e in run.log if isinstance(e, NodesReady)), default=0)

    @property
    def detection_s(self) -> int:
        """Longest time until new nodes are observed: two polls, and an outage."""
        return 2 * self.poll_s + (LONGEST_OUTAGE_S if self.outages else 0)


@pytest.mark.parametrize("outages", [False, True], ids=["reachable", "unreachable"])
@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 4)))
def test_cost_cap_overshoot_stays_within_documented_bound(seed: int, outages: bool) -> None:
    simulation = Simulation(seed, caps=True, budget_usd=None, outages=outages)

    simulation.run_to_end()

    for run in simulation.runs:
        bound = run.limits.max_cost_micros + simulation.highest_rate(run) * (SAVE_GRACE_S + simulation.detection_s) // 3600  # fmt: skip
        assert run.job.state is State.PAUSED
        assert simulation.paid_micros(run) == run.job.account.paid_micros <= bound
        assert run.job == fold(run.id, run.log)


@pytest.mark.parametrize("outages", [False, True], ids=["reachable", "unreachable"])
@pytest.mark.parametrize("seed", range(FAULT_SEEDS // 3))
def test_budget_overshoot_stays_within_documented_bound(seed: int, outages: bool) -> None:
    budget_usd = random.Random(seed).choice([2, 20, 60])
    simulation = Simulation(seed, caps=False, budget_usd=budget_usd, outages=outages)

    simulation.run_to_end()

    spent = sum(simulation.paid_micros(run) for run in simulation.runs)
    highest_rate = sum(simulation.highest_rate(run) for run in simulation.runs)
    assert {run.job.guard for run in simulation.runs} == {Guard.BUDGET}
    assert (
        spent
        <= budget_usd * MICROS_PER_USD
        + highest_rate * (SAVE_GRACE_S + simulation.detection_s) // 3600
    )


@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 5)))
def test_repeatedly_resumed_job_stays_within_each_cap(seed: int) -> None:
    simulation = Simulation(seed, caps=True, budget_usd=None, outages=False)
    run = simulation.runs[0]
    simulation.runs = [run]
    bound = 0

    for _ in range(4):
        simulation.run_to_end()
        assert run.limits.max_cost_micros is not None
        bound = run.limits.max_cost_micros + simulation.highest_rate(run) * (SAVE_GRACE_S + simulation.detection_s) // 3600  # fmt: skip
        assert simulation.paid_micros(run) <= bound
        with pytest.raises(NotPossibleNow, match="max_cost_usd must be above"):
            commands.resume(run.job, run.limits, {}, simulation.clock.now(), reason="again")
        more = {"max_cost_usd": (bound + run.job.micros_per_hour) / MICROS_PER_USD}
        facts = commands.resume(run.job, run.limits, more, simulation.clock.now(), reason="more")
        run.append(facts)
        assert run.job.limits is not None
        run.limits = run.job.limits

    assert sum(isinstance(fact, Paused) for fact in run.log) == 4
    assert bound > 0
