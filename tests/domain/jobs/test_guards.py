"""Limits at which a job is stopped: each one exactly at its threshold, and not earlier."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.events import CancelRequested, Cause, Event, Guard, GuardTripped, LeftReason
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.guards import (
    SAVE_GRACE_S,
    grace_ms,
    ms_until_trip,
    stop_of,
    trip,
    trip_without_observation,
)
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import fold
from holdfast_worker.protocol.reports import JobStop
from hypothesis import given
from hypothesis import strategies as st
from support.events import (
    at,
    denied,
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

FRUITLESS = Limits().max_fruitless
PER_HOUR = 3_600_000_000
"""One dollar per second."""
EXPENSIVE = (submitted(), launched(), ready(10, micros=PER_HOUR))


def job(*events: Event) -> Job:
    return fold("job-1", events)


def tripped(one: Job, seconds: float, **limits: object) -> Guard | None:
    fact = trip(one, Limits(**limits), at(seconds))
    return fact.guard if fact else None


def preempted_attempts(count: int, *, first: int = 1, step: int | None = None) -> list[Event]:
    """A number of attempts, each of which reached `step`, if any, and was preempted."""
    events: list[Event] = []
    for attempt in range(first, first + count):
        events += [ready(attempt * 10, attempt=attempt)]
        events += [] if step is None else [left(attempt * 10 + 1, attempt=attempt, step=step)]
        events += [lost(attempt * 10 + 2, attempt=attempt)]
    return events


def test_job_within_its_limits_continues() -> None:
    limits = {"max_cost_usd": 1000, "max_hourly_cost_usd": 3600, "deadline": "1h"}

    assert tripped(job(*EXPENSIVE), 100, **limits, max_duration="30m", max_wait="5m") is None


def test_cost_limit_trips_with_enough_left_for_saving() -> None:
    last_s = 10 + 1000 - SAVE_GRACE_S

    assert tripped(job(*EXPENSIVE), last_s - 0.001, max_cost_usd=1000) is None
    assert tripped(job(*EXPENSIVE), last_s, max_cost_usd=1000) is Guard.MAX_COST


def test_cost_of_earlier_placements_counts() -> None:
    again = job(*EXPENSIVE, lost(510), ready(600, attempt=2, micros=PER_HOUR))

    assert tripped(again, 600 + 499 - SAVE_GRACE_S, max_cost_usd=1000) is None
    assert tripped(again, 600 + 500 - SAVE_GRACE_S, max_cost_usd=1000) is Guard.MAX_COST


def test_spent_cost_limit_trips_while_waiting_for_nodes() -> None:
    poor, broke = job(*EXPENSIVE, lost(1009)), job(*EXPENSIVE, lost(1010))

    assert tripped(poor, 9000, max_cost_usd=1000) is None
    assert tripped(broke, 9000, max_cost_usd=1000) is Guard.MAX_COST


def test_nodes_over_the_hourly_limit_are_released_at_once() -> None:
    assert tripped(job(*EXPENSIVE), 10, max_hourly_cost_usd=3600) is None
    assert tripped(job(*EXPENSIVE), 10, max_hourly_cost_usd=3599) is Guard.MAX_HOURLY_COST


@pytest.mark.parametrize("deadline", ["90s", "2026-03-01T12:01:30Z"])
def test_deadline_is_one_time_in_every_spelling(deadline: str) -> None:
    assert tripped(job(*EXPENSIVE), 89.999, deadline=deadline) is None
    assert tripped(job(*EXPENSIVE), 90, deadline=deadline) is Guard.DEADLINE


def test_only_time_with_nodes_is_duration() -> None:
    again = job(*EXPENSIVE, lost(40), ready(500, attempt=2))

    assert tripped(again, 529.999, max_duration="60s") is None
    assert tripped(again, 530, max_duration="60s") is Guard.MAX_DURATION


def test_wait_restarts_with_every_capacity_loss() -> None:
    asked = job(submitted(), launched(), denied(50))
    recovering = job(*EXPENSIVE, lost(500))

    assert tripped(asked, 59.999, max_wait="1m") is None
    assert tripped(asked, 60, max_wait="1m") is Guard.MAX_WAIT
    assert tripped(job(*EXPENSIVE), 499, max_wait="1m") is None
    assert tripped(recovering, 559.999, max_wait="1m") is None
    assert tripped(recovering, 560, max_wait="1m") is Guard.MAX_WAIT


def test_only_errors_of_the_program_are_failures() -> None:
    def job_with_losses(*causes: Cause) -> Job:
        events: list[Event] = [submitted(), launched()]
        for attempt, cause in enumerate(causes, 1):
            events += [ready(attempt, attempt=attempt), lost(attempt, attempt=attempt, cause=cause)]
        return job(*events)

    market = [Cause.PREEMPTED, Cause.NODE_FAILED, Cause.LAUNCHER_RESTARTED] * 3
    twice = [Cause.USER_ERROR] * 2

    assert tripped(job_with_losses(*market, *twice), 99) is None
    assert tripped(job_with_losses(*market, *twice, Cause.USER_ERROR), 99) is Guard.MAX_FAILURES
    assert tripped(job_with_losses(*twice), 99, max_failures=2) is Guard.MAX_FAILURES


def test_max_failures_detail_is_the_last_error() -> None:
    crash = lost(20, cause=Cause.USER_ERROR)
    crash = type(crash)(at=crash.at, attempt=1, cause=crash.cause, detail="exit code 3: no GPU")
    one = job(*EXPENSIVE, crash, denied(30))

    fact = trip(one, Limits(max_failures=1), at(40))

    assert fact is not None
    assert fact.detail == "the program failed 1 time and reached max_failures: exit code 3: no GPU"


def test_placements_without_progress_trip_the_guard() -> None:
    start = [submitted(), launched()]

    assert tripped(job(*start, *preempted_attempts(FRUITLESS - 1, step=0)), 500) is None
    assert tripped(job(*start, *preempted_attempts(FRUITLESS, step=0)), 500) is Guard.ZERO_PROGRESS


def test_zero_progress_detail_names_the_counted_step() -> None:
    fruitless = job(submitted(), launched(), *preempted_attempts(FRUITLESS, step=0))

    fact = trip(fruitless, Limits(), at(500))

    assert fact is not None
    assert "no checkpoint beyond step 0; steps after the last checkpoint" in fact.detail


def test_progress_resets_the_fruitless_count() -> None:
    start = [submitted(), launched()]
    forward = [
        *start,
        *preempted_attempts(FRUITLESS - 1, step=0),
        *preempted_attempts(1, first=FRUITLESS, step=1),
    ]

    nearly = preempted_attempts(FRUITLESS - 1, first=FRUITLESS + 1, step=1)
    again = preempted_attempts(FRUITLESS, first=FRUITLESS + 1, step=1)

    assert tripped(job(*forward, *nearly), 900) is None
    assert tripped(job(*forward, *again), 900) is Guard.ZERO_PROGRESS


def test_resumed_job_gets_full_count_of_attempts_again() -> None:
    stuck = [
        submitted(),
        launched(),
        *preempted_attempts(FRUITLESS, step=0),
        pausing(103),
        paused(104),
    ]
    resume = [*stuck, resumed(105), launched(106, launch=2)]

    nearly = preempted_attempts(FRUITLESS - 1, first=FRUITLESS + 1, step=0)
    again = preempted_attempts(FRUITLESS, first=FRUITLESS + 1, step=0)

    assert tripped(job(*resume), 107) is None
    assert tripped(job(*resume, *nearly), 900) is None
    assert tripped(job(*resume, *again), 900) is Guard.ZERO_PROGRESS


def test_late_checkpoint_report_counts_as_progress() -> None:
    stuck = [submitted(), launched(), *preempted_attempts(FRUITLESS, step=0)]

    assert tripped(job(*stuck, saved(500, attempt=FRUITLESS, step=5)), 600) is None


def test_reports_count_before_their_nodes_are_recorded() -> None:
    """This happens after a long outage of the launcher, during which workers reported."""
    reports: list[Event] = []
    for attempt in range(1, 2 * FRUITLESS):
        reports += [training(attempt, attempt=attempt, step=attempt)]

    assert (
        tripped(job(submitted(), launched(), *reports, *preempted_attempts(2 * FRUITLESS - 1)), 500)
        is None
    )


def test_program_without_reports_never_trips_zero_progress() -> None:
    assert tripped(job(submitted(), launched(), *preempted_attempts(3 * FRUITLESS)), 900) is None


def test_running_placement_defers_zero_progress() -> None:
    stuck = [
        submitted(),
        launched(),
        *preempted_attempts(FRUITLESS, step=0),
        ready(800, attempt=FRUITLESS + 1),
    ]

    assert tripped(job(*stuck), 900) is None


def test_stopping_job_trips_no_further_guard() -> None:
    stopping = job(*EXPENSIVE, CancelRequested(at=at(20)))

    assert tripped(stopping, 9999, max_cost_usd=1, deadline="1s") is None


def test_guard_trips_at_the_observation_time() -> None:
    fact = trip(job(*EXPENSIVE), Limits(deadline="30s"), at(31))

    assert fact is not None
    assert fact.at == at(31)
    assert at(30).strftime("%H:%M:%S") in fact.detail


# While the launcher does not respond


def test_cost_and_time_limits_trip_without_observation() -> None:
    def guard_at(seconds: float, **limits: object) -> Guard | None:
        fact = trip_without_observation(job(*EXPENSIVE), Limits(**limits), at(seconds))
        return fact.guard if fact else None

    assert guard_at(2000, max_cost_usd=1000) is Guard.MAX_COST
    assert guard_at(2000, deadline="30m") is Guard.DEADLINE
    assert guard_at(2000, max_duration="30m") is Guard.MAX_DURATION


def test_wait_limit_needs_an_observation() -> None:
    recovering = job(*EXPENSIVE, lost(500))

    assert trip(recovering, Limits(max_wait="1m"), at(9999))
    assert trip_without_observation(recovering, Limits(max_wait="1m"), at(9999)) is None


# Predicted trip time


@given(
    rate=st.integers(0, 2 * PER_HOUR),
    begun_s=st.floats(0, 500),
    looked_s=st.floats(500, 1000),
    cap_usd=st.integers(1, 2000),
    deadline_s=st.integers(1, 3000),
    duration_s=st.integers(1, 3000),
)
def test_predicted_trip_time_is_exact(
    rate: int, begun_s: float, looked_s: float, cap_usd: int, deadline_s: int, duration_s: int
) -> None:
    one = job(submitted(), launched(), ready(3, micros=rate), lost(40), ready(begun_s, attempt=2))
    limits = Limits(max_cost_usd=cap_usd, deadline=f"{deadline_s}s", max_duration=f"{duration_s}s")

    within_ms = ms_until_trip(one, limits, at(looked_s))

    assert within_ms is not None
    assert trip_without_observation(one, limits, at(looked_s + within_ms / 1000))
    assert (
        not trip_without_observation(one, limits, at(looked_s + (within_ms - 1) / 1000))
        or within_ms <= 0
    )


def test_free_or_unlimited_job_has_no_trip_time() -> None:
    waiting, free = job(submitted(), launched()), job(submitted(), launched(), ready(9, micros=0))

    assert ms_until_trip(waiting, Limits(max_cost_usd=1, max_duration="1s"), at(100)) is None
    assert ms_until_trip(free, Limits(max_cost_usd=1), at(100)) is None
    assert ms_until_trip(job(*EXPENSIVE), Limits(), at(100)) is None


def test_tiny_price_gives_a_trip_time_beyond_the_calendar() -> None:
    cheap = job(submitted(), launched(), ready(10, micros=1))

    assert (ms_until_trip(cheap, Limits(max_cost_usd=10_000_000), at(10)) or 0) > 10**19


def test_worker_has_two_minutes_to_save_after_a_stop_request() -> None:
    stopping = job(*EXPENSIVE, CancelRequested(at=at(20)))

    assert grace_ms(job(*EXPENSIVE), at(20)) is None
    assert grace_ms(stopping, at(20)) == SAVE_GRACE_S * 1000
    assert grace_ms(stopping, at(19.5 + SAVE_GRACE_S)) == 500
    assert grace_ms(stopping, at(9999)) == 0
    assert grace_ms(job(*EXPENSIVE, finished(20)), at(21)) == 0


# Exit reports after which a retry is useless


def worker_left(code: int, attempt: int = 1, reason: LeftReason = LeftReason.FAILED) -> Event:
    return left(attempt * 20, attempt=attempt, step=0, reason=reason, exit_code=code)


def test_launcher_restart_after_a_fatal_exit_code_is_stopped() -> None:
    """SkyPilot counts restarts, and knows no exit code that makes one useless.

    A misspelled bucket rented nodes three times.
    """
    crash = lost(30, cause=Cause.USER_ERROR)

    assert tripped(job(*EXPENSIVE, worker_left(78), crash), 31) is Guard.NO_RETRY
    assert tripped(job(*EXPENSIVE, worker_left(2), crash), 31) is Guard.NO_RETRY
    assert tripped(job(*EXPENSIVE, worker_left(1), crash), 31) is None
    assert (
        tripped(job(*EXPENSIVE, worker_left(75, reason=LeftReason.PREEMPTED), lost(30)), 31) is None
    )


def test_no_retry_detail_is_the_message_of_the_worker() -> None:
    reports = worker_left(78)
    reports = replace(reports, detail="the checkpoint store s3://nowhere cannot be used")

    fact = trip(job(*EXPENSIVE, reports, lost(30, cause=Cause.USER_ERROR)), Limits(), at(31))

    assert fact is not None
    assert fact.detail == (
        "retries cannot succeed: the worker exited with exit code 78: "
        "the checkpoint store s3://nowhere cannot be used"
    )


def test_fatal_exit_report_does_not_trip_before_the_loss() -> None:
    """A launcher that does not restart the program ends the job itself, with its own detail."""
    assert tripped(job(*EXPENSIVE, worker_left(78)), 31) is None


def test_untrained_retry_after_a_fatal_exit_is_stopped() -> None:
    again = [worker_left(78), lost(30, cause=Cause.USER_ERROR), ready(40, attempt=2)]

    assert tripped(job(*EXPENSIVE, *again), 41) is Guard.NO_RETRY
    assert tripped(job(*EXPENSIVE, *again, training(42, attempt=2)), 43) is None
    assert tripped(job(*EXPENSIVE, *again, worker_left(1, attempt=2)), 43) is None


@pytest.mark.parametrize(
    ("events", "stop"),
    [
        ((), None),
        ((CancelRequested(at=at(19)),), JobStop.CANCELLED),
        ((pausing(19),), JobStop.PAUSED),
        ((pausing(19), paused(20)), JobStop.PAUSED),
        ((GuardTripped(at=at(19), guard=Guard.MAX_COST, detail="spent"),), JobStop.PAUSED),
        ((GuardTripped(at=at(19), guard=Guard.SAME_CRASH, detail="again"),), JobStop.FAILED),
        ((finished(20),), None),
    ],
)
def test_worker_of_a_stopping_job_learns_what_becomes_of_it(
    events: tuple[Event, ...], stop: JobStop | None
) -> None:
    assert stop_of(job(*EXPENSIVE, *events)) is stop
