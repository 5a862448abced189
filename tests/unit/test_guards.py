"""Where a job is given up: each limit at its very edge, and not before."""

from __future__ import annotations

import pytest
from histories import at, denied, launched, left, lost, ready, saved, submitted, training
from holdfast.domain.events import CancelRequested, Cause, Event, Guard
from holdfast.domain.guards import FRUITLESS, SAVE_GRACE_S, trip
from holdfast.domain.lifecycle import Job, fold
from holdfast.domain.limits import Limits

PER_HOUR = 3_600_000_000
"""A dollar for every second."""
DEAR = (submitted(), launched(), ready(10, micros=PER_HOUR))


def job(*events: Event) -> Job:
    return fold("job-1", events)


def tripped(one: Job, seconds: float, **limits: object) -> Guard | None:
    fact = trip(one, Limits(**limits), at(seconds))
    return fact.guard if fact else None


def turns(count: int, *, first: int = 1, step: int | None = None) -> list[Event]:
    """So many placements, each of which came to `step`, if at all, and was preempted."""
    events: list[Event] = []
    for attempt in range(first, first + count):
        events += [ready(attempt * 10, attempt=attempt)]
        events += [] if step is None else [left(attempt * 10 + 1, attempt=attempt, step=step)]
        events += [lost(attempt * 10 + 2, attempt=attempt)]
    return events


def test_a_job_within_its_limits_goes_on() -> None:
    limits = {"max_cost_usd": 1000, "max_hourly_cost_usd": 3600, "deadline": "1h"}

    assert tripped(job(*DEAR), 100, **limits, max_duration="30m", max_wait="5m") is None


def test_money_runs_out_while_there_is_still_some_for_saving() -> None:
    last_s = 10 + 1000 - SAVE_GRACE_S

    assert tripped(job(*DEAR), last_s - 0.001, max_cost_usd=1000) is None
    assert tripped(job(*DEAR), last_s, max_cost_usd=1000) is Guard.MAX_COST


def test_money_that_earlier_placements_have_cost_counts() -> None:
    again = job(*DEAR, lost(510), ready(600, attempt=2, micros=PER_HOUR))

    assert tripped(again, 600 + 499 - SAVE_GRACE_S, max_cost_usd=1000) is None
    assert tripped(again, 600 + 500 - SAVE_GRACE_S, max_cost_usd=1000) is Guard.MAX_COST


def test_waiting_costs_nothing_but_a_budget_that_is_spent_buys_no_more_nodes() -> None:
    poor, broke = job(*DEAR, lost(1009)), job(*DEAR, lost(1010))

    assert tripped(poor, 9000, max_cost_usd=1000) is None
    assert tripped(broke, 9000, max_cost_usd=1000) is Guard.MAX_COST


def test_nodes_that_are_too_dear_are_given_back_at_once() -> None:
    assert tripped(job(*DEAR), 10, max_hourly_cost_usd=3600) is None
    assert tripped(job(*DEAR), 10, max_hourly_cost_usd=3599) is Guard.MAX_HOURLY_COST


@pytest.mark.parametrize("deadline", ["90s", "2026-03-01T12:01:30Z"])
def test_a_deadline_is_one_moment_however_it_was_written(deadline: str) -> None:
    assert tripped(job(*DEAR), 89.999, deadline=deadline) is None
    assert tripped(job(*DEAR), 90, deadline=deadline) is Guard.DEADLINE


def test_only_time_with_nodes_is_duration() -> None:
    again = job(*DEAR, lost(40), ready(500, attempt=2))

    assert tripped(again, 529.999, max_duration="60s") is None
    assert tripped(again, 530, max_duration="60s") is Guard.MAX_DURATION


def test_a_wait_begins_with_the_submission_and_anew_with_every_loss() -> None:
    asked = job(submitted(), launched(), denied(50))
    recovering = job(*DEAR, lost(500))

    assert tripped(asked, 59.999, max_wait="1m") is None
    assert tripped(asked, 60, max_wait="1m") is Guard.MAX_WAIT
    assert tripped(job(*DEAR), 499, max_wait="1m") is None
    assert tripped(recovering, 559.999, max_wait="1m") is None
    assert tripped(recovering, 560, max_wait="1m") is Guard.MAX_WAIT


def test_only_errors_of_the_program_are_failures() -> None:
    def lives(*causes: Cause) -> Job:
        events: list[Event] = [submitted(), launched()]
        for attempt, cause in enumerate(causes, 1):
            events += [ready(attempt, attempt=attempt), lost(attempt, attempt=attempt, cause=cause)]
        return job(*events)

    market = [Cause.PREEMPTED, Cause.NODE_FAILED, Cause.LAUNCHER_RESTARTED] * 3
    twice = [Cause.USER_ERROR] * 2

    assert tripped(lives(*market, *twice), 99) is None
    assert tripped(lives(*market, *twice, Cause.USER_ERROR), 99) is Guard.MAX_FAILURES
    assert tripped(lives(*twice), 99, max_failures=2) is Guard.MAX_FAILURES


def test_why_a_program_failed_too_often_is_what_it_said_last() -> None:
    crash = lost(20, cause=Cause.USER_ERROR)
    crash = type(crash)(at=crash.at, attempt=1, cause=crash.cause, detail="exit code 3: no GPU")
    one = job(*DEAR, crash, denied(30))

    fact = trip(one, Limits(max_failures=1), at(40))

    assert fact is not None
    assert (
        fact.detail == "the program has failed 1 time, which is max_failures: exit code 3: no GPU"
    )


def test_placements_that_come_no_further_are_given_up() -> None:
    start = [submitted(), launched()]

    assert tripped(job(*start, *turns(FRUITLESS - 1, step=0)), 500) is None
    assert tripped(job(*start, *turns(FRUITLESS, step=0)), 500) is Guard.ZERO_PROGRESS


def test_every_step_forward_starts_the_count_anew() -> None:
    start = [submitted(), launched()]
    forward = [*start, *turns(FRUITLESS - 1, step=0), *turns(1, first=FRUITLESS, step=1)]

    nearly = turns(FRUITLESS - 1, first=FRUITLESS + 1, step=1)
    again = turns(FRUITLESS, first=FRUITLESS + 1, step=1)

    assert tripped(job(*forward, *nearly), 900) is None
    assert tripped(job(*forward, *again), 900) is Guard.ZERO_PROGRESS


def test_a_checkpoint_that_is_told_late_is_a_step_forward() -> None:
    stuck = [submitted(), launched(), *turns(FRUITLESS, step=0)]

    assert tripped(job(*stuck, saved(500, attempt=FRUITLESS, step=5)), 600) is None


def test_what_many_placements_have_told_counts_though_their_nodes_are_told_later() -> None:
    """As after a long silence of the launcher: workers were heard all the while."""
    words: list[Event] = []
    for attempt in range(1, 2 * FRUITLESS):
        words += [training(attempt, attempt=attempt, step=attempt)]

    assert tripped(job(submitted(), launched(), *words, *turns(2 * FRUITLESS - 1)), 500) is None


def test_a_program_that_never_tells_anything_may_have_come_far() -> None:
    assert tripped(job(submitted(), launched(), *turns(3 * FRUITLESS)), 900) is None


def test_a_placement_that_still_stands_may_come_further() -> None:
    stuck = [submitted(), launched(), *turns(FRUITLESS, step=0), ready(800, attempt=FRUITLESS + 1)]

    assert tripped(job(*stuck), 900) is None


def test_a_job_that_is_stopping_trips_nothing_more() -> None:
    stopping = job(*DEAR, CancelRequested(at=at(20)))

    assert tripped(stopping, 9999, max_cost_usd=1, deadline="1s") is None


def test_a_guard_trips_at_the_time_of_the_look() -> None:
    fact = trip(job(*DEAR), Limits(deadline="30s"), at(31))

    assert fact is not None
    assert fact.at == at(31)
    assert at(30).strftime("%H:%M:%S") in fact.detail
