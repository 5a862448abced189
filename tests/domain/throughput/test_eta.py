"""The expected end of jobs: its band over simulated jobs, and why there is none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from holdfast.domain.attempts import LatestPoint
from holdfast.domain.events import Event, PlanForecast
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.throughput.end_estimate import (
    USUAL_SPOT_LOSS_S,
    InterruptionPrior,
    RemainingWork,
    estimate_end,
)
from holdfast.domain.throughput.eta import NO_TOTAL, NOT_MEASURED, Eta, job_eta
from holdfast.domain.throughput.run_history import RecordedForecast, RunHistory, run_history
from support.events import (
    at,
    finished,
    launched,
    left,
    lost,
    paused,
    pausing,
    ready,
    resumed,
    saved,
    submitted,
    training,
)
from support.job_lives import live

PRIOR = InterruptionPrior(loss_s=USUAL_SPOT_LOSS_S, downtime_s=300)
STEADY = InterruptionPrior(loss_s=1e12, downtime_s=300)
WORK = RemainingWork(steps=1000, step_s=36, measured_s=36_000, since=at(0), interval_s=1800)
STARTED: tuple[Event, ...] = (submitted(), launched(), ready(10))
TRAINS = (*STARTED, training(20, total=1000), saved(1020, step=100))


def eta(facts: Sequence[Event], now: datetime, *points: LatestPoint) -> Eta:
    reached = dict(enumerate(points, 1))
    job, history = fold("job-1", facts), run_history(facts, reached)
    return job_eta(job, history, reached.get(job.attempt), STEADY, now)


def coverage(jobs: int) -> float:
    """Share of jobs that end between P10 and P90, as estimated at a time drawn from their lives."""
    inside = 0
    for seed in range(jobs):
        life = live(seed)
        whole = life.ended_at - life.started_at
        now = life.started_at + whole * random.Random(f"now/{seed}").uniform(0.05, 0.95)
        job, events, points = life.until(now)
        found = job_eta(job, run_history(events, points), points.get(job.attempt), PRIOR, now)
        assert found.estimate, found.reason
        inside += found.estimate.p10 <= life.ended_at <= found.estimate.p90
    return inside / jobs


def test_band_holds_the_end_of_most_simulated_jobs() -> None:
    assert coverage(30) >= 0.6


@pytest.mark.full
def test_band_holds_the_end_of_four_jobs_in_five() -> None:
    assert 0.75 <= coverage(200) <= 0.90


def test_steady_job_ends_after_its_remaining_steps() -> None:
    found = eta(TRAINS, at(2025), LatestPoint(step=200, at=at(2020))).estimate

    assert found
    assert abs((found.p50 - at(10_020)).total_seconds()) < 0.01 * 8000
    assert found.p10 < found.p50 < found.p90
    assert found.interruptions == 0


def test_losses_widen_the_band_and_delay_the_end() -> None:
    calm = estimate_end(WORK, RunHistory(trained_s=360_000), PRIOR, at(0))
    lossy = estimate_end(WORK, RunHistory(trained_s=36_000, losses=10), PRIOR, at(0))

    assert lossy.p50 > calm.p50
    assert lossy.p90 - lossy.p10 > calm.p90 - calm.p10
    assert lossy.interruptions > 5 > calm.interruptions


def test_prior_of_a_bad_place_delays_the_end() -> None:
    new = RunHistory(trained_s=60)
    bad = replace(PRIOR, loss_s=USUAL_SPOT_LOSS_S / 10)

    assert estimate_end(WORK, new, bad, at(0)).p50 > estimate_end(WORK, new, PRIOR, at(0)).p50


def test_waiting_job_resumes_from_its_checkpoint() -> None:
    facts = (*TRAINS, lost(2020))

    found = eta(facts, at(2030), LatestPoint(step=200, at=at(2015))).estimate

    assert found
    assert found.p10 > at(2030 + 0.95 * 900 * 10), "900 steps are left, and the wait"


def test_ranks_that_wait_longer_than_ever_still_have_an_end() -> None:
    facts = (*TRAINS, lost(2020))

    found = eta(facts, at(90_000)).estimate

    assert found
    assert at(98_000) < found.p50 < found.p90


def test_resumed_job_waits_for_nodes_first() -> None:
    paused_job = (*TRAINS, pausing(1100), left(1110, step=100), paused(1200))
    facts = (*paused_job, resumed(50_000), launched(50_001, launch=2))

    found = eta(facts, at(50_010)).estimate

    assert found
    assert found.p10 > at(50_010 + 0.95 * 900 * 10) + timedelta(seconds=60)


def test_same_facts_give_the_same_band() -> None:
    first, second = (estimate_end(WORK, RunHistory(losses=3), PRIOR, at(5)) for _ in range(2))

    assert first == second


def test_job_past_its_last_step_ends_now() -> None:
    found = eta(TRAINS, at(12_000), LatestPoint(step=1000, at=at(10_020))).estimate

    assert found
    assert found.p10 == found.p90 == at(12_000)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (STARTED, NO_TOTAL),
        ((*STARTED, training(20, total=None), saved(1020, step=100)), NO_TOTAL),
        ((*STARTED, training(20, total=1000)), NOT_MEASURED),
        ((*TRAINS, pausing(1100)), "it is being paused"),
        ((*TRAINS, pausing(1100), paused(1200)), "it is paused"),
        ((*TRAINS, finished(1200)), "it has ended"),
    ],
)
def test_job_without_an_end_says_why(facts: Sequence[Event], reason: str) -> None:
    assert eta(facts, at(2000)) == Eta(reason=reason)


def test_planned_job_has_the_end_of_its_plan() -> None:
    ends = [at(5000), at(6000), at(9000)]
    forecast = PlanForecast(
        runs=128,
        cost_p10_usd=1,
        cost_p50_usd=2,
        cost_p90_usd=3,
        end_p10=ends[0],
        end_p50=ends[1],
        end_p90=ends[2],
        late=0,
        over_budget=0,
        preemptions=1.5,
        lost_work_s=0,
    )
    history = replace(run_history(TRAINS, {}), planned=RecordedForecast(at(1000), forecast))

    found = job_eta(fold("job-1", TRAINS), history, None, PRIOR, at(5500))

    assert found.is_planned
    assert found.as_of == at(1000)
    assert found.estimate
    assert (found.estimate.p10, found.estimate.p50) == (at(5500), at(6000))
    assert found.estimate.p90 - found.estimate.p50 == timedelta(seconds=3000)
