"""Limits hold under random market conditions; the polling interval bounds overspending."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.events import (
    Event,
    Guard,
    GuardTripped,
    NodesReady,
    Outcome,
    Submitted,
    WorkerLeft,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.guards import SAME_CRASHES, SAVE_GRACE_S
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.reconcile import Effect, ReconcileContext, decide
from holdfast.domain.jobs.reports import Point, parse_report
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.launchers.simulated import (
    LIKE_SKYPILOT,
    Failure,
    LauncherBehavior,
    SimulatedCloud,
    SimulatedProgram,
)
from holdfast.ports import Launch
from support.fakes import FixedClock
from support.repetitions import FAULT_SEEDS

POLL_EVERY_S = 10
LONG = SimulatedProgram(total_steps=5000, checkpoint_every_steps=100, upload_s=10, stall_s=1)


@dataclass
class JobRun:
    """One job in the simulated cloud, with a reconciler that polls every ten seconds."""

    cloud: SimulatedCloud
    clock: FixedClock
    limits: Limits
    log: list[Event] = field(default_factory=list)
    imported: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        submitted = Submitted(at=self.clock.now(), name="job", spec={}, task="")
        self.log.append(submitted)

    def job(self) -> Job:
        return fold("job", self.log)

    def run_to_end(self) -> Job:
        """Run the job until it has ended or is paused, and return it."""
        for _ in range(20_000):
            asyncio.run(self._step())
            self.clock.advance(POLL_EVERY_S)
            if (job := self.job()).state in {State.PAUSED, State.ENDED}:
                return job
        raise AssertionError("it never ended")

    async def _step(self) -> None:
        job = self.job()
        seen = await self.cloud.observe(job.launch_key) if job.is_launched else None
        self.log += self._new_events()
        context = ReconcileContext(
            limits=self.limits, has_store=True, saves_on_cancel=self.cloud.saves_on_cancel
        )
        plan = decide(self.job(), seen, self.clock.now(), context)
        self.log += plan.record
        job = self.job()
        if job.is_leaving:
            self.cloud.request_shutdown(job.launch_key)  # As the response to a report requests.
        if plan.effect is Effect.SUBMIT:
            await self.cloud.submit(_launch(job))
        elif plan.effect is Effect.CANCEL:
            await self.cloud.cancel(job.launch_key)

    def _new_events(self) -> Iterator[Event]:
        for report in list(self.cloud.read_new("job", self.imported)):
            self.imported[report.attempt] = report.n
            if not isinstance(reported := parse_report(report), Point):
                yield reported


def _launch(job: Job) -> Launch:
    return Launch(
        key=job.launch_key,
        job_id=job.id,
        first_attempt=job.attempts_before_launch + 1,
        task={"num_nodes": 2},
        max_failures=99,
    )


def start_run(
    market: MarketParameters,
    program: SimulatedProgram,
    behavior: LauncherBehavior,
    **limits: object,
) -> JobRun:
    clock = FixedClock()
    return JobRun(SimulatedCloud(clock, market, program, behavior), clock, Limits(**limits))


def draw_conditions(seed: int) -> tuple[random.Random, MarketParameters, LauncherBehavior]:
    rng = random.Random(seed)
    behavior = rng.choice([LauncherBehavior(), LIKE_SKYPILOT])
    market = MarketParameters(
        seed=seed,
        provision_s=rng.choice([5.0, 60.0]),
        denial_rate=rng.choice([0.0, 0.5]),
        mtbf_s=rng.choice([0.0, 200.0, 1500.0]),
        notice_s=rng.choice([0.0, 30.0]),
        spot_micros=rng.choice([1_150_000, 20_000_000]),
    )
    return rng, market, behavior


@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 3)))
def test_overspending_is_at_most_the_cost_of_saving(seed: int) -> None:
    rng, market, behavior = draw_conditions(seed)
    cap_usd = round(rng.uniform(0.05, 0.8) * market.spot_micros / 1_000_000, 2)
    run = start_run(market, LONG, behavior, max_cost_usd=cap_usd)

    job = run.run_to_end()

    paid = compute_bill(run.log, {}, run.clock.now()).paid_micros
    highest_rate = max(fact.micros_per_hour for fact in run.log if isinstance(fact, NodesReady))
    tripped = [fact for fact in run.log if isinstance(fact, GuardTripped)]
    assert paid <= cap_usd * 1_000_000 + highest_rate * SAVE_GRACE_S // 3600
    assert job.account.paid_micros == paid
    assert (job.state, job.tripped) == (State.PAUSED, tripped[0].detail)
    assert job.detail.startswith(f"{job.tripped}; resume with: holdfast resume job --max-cost ")


@pytest.mark.parametrize("behavior", [LauncherBehavior(), LIKE_SKYPILOT], ids=["local", "skypilot"])
def test_job_saves_its_last_step_when_cost_limit_trips(behavior: LauncherBehavior) -> None:
    run = start_run(MarketParameters(), LONG, behavior, max_cost_usd=0.5)

    job = run.run_to_end()

    [left] = [fact for fact in run.log if isinstance(fact, WorkerLeft)]
    assert job.last_checkpoint_step == left.step > 100
    assert job.tripped.startswith("spent $0.4")


@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 10)))
def test_restarting_program_ends_at_its_failure_limit(
    seed: int,
) -> None:
    market = MarketParameters(seed=seed, provision_s=random.Random(seed).choice([5.0, 60.0]))
    program = SimulatedProgram(failure=Failure(step=30, times=10_000))
    run = start_run(market, program, LIKE_SKYPILOT, max_failures=2)

    job = run.run_to_end()

    assert job.failures == 2
    assert (job.outcome, job.exit_code) == (Outcome.FAILED, None)
    assert "the program failed 2 times and reached max_failures: node 0 exited" in job.detail


def test_crash_loop_ends_a_job_below_its_failure_limit() -> None:
    program = SimulatedProgram(failure=Failure(step=30, times=10_000))
    run = start_run(MarketParameters(), program, LIKE_SKYPILOT, max_failures=100)

    job = run.run_to_end()

    assert job.failures == SAME_CRASHES
    assert (job.outcome, job.guard) == (Outcome.FAILED, Guard.SAME_CRASH)
    assert job.detail.startswith(
        "the last 3 crashes were identical, without a checkpoint in between: exit code 1: "
    )


def test_program_always_exiting_as_preempted_is_paused() -> None:
    program = SimulatedProgram(failure=Failure(step=30, exit_code=75, times=10_000))
    run = start_run(MarketParameters(), program, LIKE_SKYPILOT)

    job = run.run_to_end()

    assert job.state is State.PAUSED
    assert job.detail.startswith("no progress")
    assert job.detail.endswith("; resume with: holdfast resume job")
    assert 10 < job.attempt <= 12
    assert job.failures == 0


def test_job_without_capacity_waits_for_max_wait() -> None:
    no_capacity = MarketParameters(denial_rate=0.999, provision_s=30)
    run = start_run(no_capacity, LONG, LIKE_SKYPILOT, max_wait="20m")

    job = run.run_to_end()

    waited_s = (run.log[-1].at - run.log[0].at).total_seconds()
    assert job.tripped == "no nodes within max_wait 20m"
    assert 1200 <= waited_s <= 1200 + 2 * POLL_EVERY_S
