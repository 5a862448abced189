"""No fault spends more than the limit, the time to save, and the cost of nodes while no worker was reachable.

Jobs live in a simulated cloud with prices, losses and clocks of their own. The service dies now and then, and the
launcher is away for up to half an hour at a time. What is spent is bounded by

    cap + dearest rate * (120 s to save + two looks + the longest time away)

as nodes that have come are seen at the next look, or at the one after if somebody dies at it. While it is away the guard still trips by what was recorded,
and a worker that can be heard leaves; but its nodes are paid for until somebody can be told.
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
AWAY_S = 1800
"""Longest time for which the launcher is away."""
DAYS_S = 86_400


@dataclass
class Life:
    """One job, with its facts and what is known to follow from them."""

    id: str
    cloud: SimulatedCloud
    limits: Limits
    log: list[Event] = field(default_factory=list)
    heard: dict[int, int] = field(default_factory=dict)
    due_s: float = 0.0
    """When somebody looks at it again, in seconds since the beginning."""
    job: Job = field(init=False)

    def tell(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Submitted):
                self.job = create_job(self.id, event)
            else:
                self.job = advance(self.job, event)
            self.log.append(event)

    def words(self) -> Iterator[Event]:
        for report in list(self.cloud.read_new(self.id, self.heard)):
            self.heard[report.attempt] = report.n
            if not isinstance(reported := parse_report(report), Point):
                yield reported


class World:
    """Some jobs, who watches them, and a budget for all of them, if there is one."""

    def __init__(self, seed: int, *, caps: bool, budget_usd: float | None, outages: bool) -> None:
        self.rng = random.Random(seed)
        self.clock = FixedClock()
        self.began = self.clock.now()
        self.outages = outages
        self.look_s = self.rng.choice([15, 60, 120])
        self.habits = self.rng.choice([LauncherBehavior(), LIKE_SKYPILOT])
        self.away_until_s = self.next_outage_s = self.rng.uniform(0, 3600)
        self.was_reached = False
        self.budget = budget_usd and Budget(
            scope=BudgetScope.PROJECT, name="nlp", monthly_micros=round(budget_usd * MICROS_PER_USD)
        )
        self.lives = [self._life(seed, n, caps=caps) for n in range(self.rng.randint(1, 4))]

    def _life(self, seed: int, number: int, *, caps: bool) -> Life:
        climate = MarketParameters(
            seed=seed * 10 + number,
            provision_s=self.rng.choice([5.0, 60.0]),
            denial_rate=self.rng.choice([0.0, 0.5]),
            mtbf_s=self.rng.choice([0.0, 1000.0, 3000.0]),
            notice_s=self.rng.choice([0.0, 30.0]),
            spot_micros=self.rng.choice([4_000_000, 20_000_000, 98_000_000]),
        )
        cap = round(self.rng.uniform(0.1, 2) * climate.spot_micros / MICROS_PER_USD, 2)
        limits = (
            Limits(max_cost_usd=cap, max_fruitless=1000) if caps else Limits(max_fruitless=1000)
        )
        cloud = SimulatedCloud(self.clock, climate, LONG, self.habits)
        life = Life(f"job{number}", cloud, limits)
        life.tell([Submitted(at=self.clock.now(), name="job", spec={}, task="")])
        return life

    @property
    def now_s(self) -> float:
        return (self.clock.now() - self.began).total_seconds()

    def ride_out(self) -> None:
        """Until all are paused or over."""
        while any(life.job.state not in {State.PAUSED, State.ENDED} for life in self.lives):
            life = min(self._going(), key=lambda each: each.due_s)
            self.clock.advance(max(0.001, life.due_s - self.now_s))
            self._weather()
            asyncio.run(self._step(life))
            assert self.now_s < 5 * DAYS_S, "it never came to an end"

    def _going(self) -> list[Life]:
        return [e for e in self.lives if e.job.state not in {State.PAUSED, State.ENDED}]

    def _weather(self) -> None:
        if self.outages and self.now_s >= self.next_outage_s:
            self.away_until_s = self.now_s + self.rng.uniform(10, AWAY_S)
            self.next_outage_s = self.away_until_s + self.rng.uniform(600, 7200)

    @property
    def is_away(self) -> bool:
        return self.outages and self.now_s < self.away_until_s

    async def _step(self, life: Life) -> None:
        """As the reconciler does it; a crash ends the turn."""
        terms = ReconcileContext(
            limits=life.limits,
            has_store=True,
            budgets=self._purses(),
            saves_on_cancel=life.cloud.saves_on_cancel,
        )
        job = life.job
        if self.is_away:
            life.tell(list(life.words()))
            self._record(life, decide_without_observation(life.job, self.clock.now(), terms).record)
            self._ask_to_leave(life)
        elif not self._dies():
            seen = await life.cloud.observe(job.launch_key) if job.is_launched else None
            life.tell(list(life.words()))
            plan = decide(life.job, seen, self.clock.now(), terms)
            self._record(life, plan.record)
            self._ask_to_leave(life)
            if not self._dies():
                await self._act(life, plan.effect)
        self._plan_next(life, terms)

    def _record(self, life: Life, facts: Sequence[Event]) -> None:
        life.tell(facts)
        self.was_reached |= any(
            isinstance(fact, GuardTripped) and fact.guard is Guard.BUDGET for fact in facts
        )

    def _ask_to_leave(self, life: Life) -> None:
        if life.job.is_leaving and life.job.is_launched:
            life.cloud.request_shutdown(life.job.launch_key)

    async def _act(self, life: Life, effect: Effect | None) -> None:
        if effect is Effect.SUBMIT:
            job = life.job
            first, nodes = job.attempts_before_launch + 1, {"num_nodes": self.rng.randint(1, 3)}
            await life.cloud.submit(
                Launch(
                    key=job.launch_key,
                    job_id=job.id,
                    first_attempt=first,
                    task=nodes,
                    max_failures=99,
                )
            )
        elif effect is Effect.CANCEL:
            await life.cloud.cancel(life.job.launch_key)

    def _plan_next(self, life: Life, terms: ReconcileContext) -> None:
        wait_s: float = self.look_s
        within_ms = ms_until_decision(life.job, self.clock.now(), terms)
        if within_ms is not None:
            wait_s = min(wait_s, max(0, within_ms) / 1000)
        life.due_s = self.now_s + wait_s

    def _dies(self) -> bool:
        return self.rng.random() < 0.02

    def _purses(self) -> tuple[BudgetBalance, ...]:
        if not self.budget:
            return ()
        now, month = self.clock.now(), Month.containing(self.clock.now())
        spent = sum(paid_between(life.log, month.start, now) for life in self.lives)
        rate = sum(life.job.account.micros_per_hour for life in self.lives)
        return (
            BudgetBalance(budget=self.budget, at=now, spent_micros=spent, micros_per_hour=rate, was_reached=self.was_reached),
        )  # fmt: skip

    def paid_micros(self, life: Life) -> int:
        """What the cloud would send a bill for."""
        keys = [f"{life.id}-{number}" for number in range(1, life.job.launch + 1)]
        launches = [asyncio.run(life.cloud.observe(key)) for key in keys]
        return sum(span.micros for span in spans(launches))

    def dearest(self, life: Life) -> int:
        return max((e.micros_per_hour for e in life.log if isinstance(e, NodesReady)), default=0)

    @property
    def late_s(self) -> int:
        """Until somebody sees nodes that have come, with one who dies at it, and the time away."""
        return 2 * self.look_s + (AWAY_S if self.outages else 0)


@pytest.mark.parametrize("outages", [False, True], ids=["answered", "away"])
@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 4)))
def test_cost_cap_overshoot_stays_within_documented_bound(seed: int, outages: bool) -> None:
    world = World(seed, caps=True, budget_usd=None, outages=outages)

    world.ride_out()

    for life in world.lives:
        bound = life.limits.max_cost_micros + world.dearest(life) * (SAVE_GRACE_S + world.late_s) // 3600  # fmt: skip
        assert life.job.state is State.PAUSED
        assert world.paid_micros(life) == life.job.account.paid_micros <= bound
        assert life.job == fold(life.id, life.log)


@pytest.mark.parametrize("outages", [False, True], ids=["answered", "away"])
@pytest.mark.parametrize("seed", range(FAULT_SEEDS // 3))
def test_budget_overshoot_stays_within_documented_bound(seed: int, outages: bool) -> None:
    budget_usd = random.Random(seed).choice([2, 20, 60])
    world = World(seed, caps=False, budget_usd=budget_usd, outages=outages)

    world.ride_out()

    spent = sum(world.paid_micros(life) for life in world.lives)
    dearest = sum(world.dearest(life) for life in world.lives)
    assert {life.job.guard for life in world.lives} == {Guard.BUDGET}
    assert spent <= budget_usd * MICROS_PER_USD + dearest * (SAVE_GRACE_S + world.late_s) // 3600


@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 5)))
def test_a_job_that_is_resumed_again_and_again_keeps_to_each_cap(seed: int) -> None:
    world = World(seed, caps=True, budget_usd=None, outages=False)
    life = world.lives[0]
    world.lives = [life]
    bound = 0

    for _ in range(4):
        world.ride_out()
        assert life.limits.max_cost_micros is not None
        bound = life.limits.max_cost_micros + world.dearest(life) * (SAVE_GRACE_S + world.late_s) // 3600  # fmt: skip
        assert world.paid_micros(life) <= bound
        with pytest.raises(NotPossibleNow, match="max_cost_usd must be above"):
            commands.resume(life.job, life.limits, {}, world.clock.now(), reason="again")
        more = {"max_cost_usd": (bound + life.job.micros_per_hour) / MICROS_PER_USD}
        facts = commands.resume(life.job, life.limits, more, world.clock.now(), reason="more")
        life.tell(facts)
        assert life.job.limits is not None
        life.limits = life.job.limits

    assert sum(isinstance(fact, Paused) for fact in life.log) == 4
    assert bound > 0
