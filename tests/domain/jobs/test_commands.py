"""User commands in each state of a job, and the limits required for a resume."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.domain.events import (
    CancelRequested,
    Cause,
    Event,
    Finished,
    Guard,
    LimitsChanged,
    Outcome,
    PauseRequested,
    ResumeRequested,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs import commands
from holdfast.domain.jobs.commands import immediate_pause_reason, resume_command
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.errors import BadLimits, NotPossibleNow
from support.events import (
    at,
    finished,
    launched,
    lost,
    paused,
    pausing,
    ready,
    relimited,
    resumed,
    submitted,
    training,
    tripped,
)

PER_HOUR = 3_600_000_000
"""One dollar per second."""
LIVES = (submitted(), launched(), ready(10, micros=PER_HOUR), training(20))
WAITS = (*LIVES, pausing(100), lost(110, cause=Cause.PAUSED), paused(110))
"""A job whose nodes have cost a hundred dollars so far."""
NOW = at(1000)


def job(*events: Event) -> Job:
    return fold("job-1", events)


def stopped(guard: Guard) -> Job:
    return job(*LIVES, tripped(100, guard), lost(110, cause=Cause.PAUSED), paused(110))


def resume_events(one: Job, limits: Limits = Limits(), **changes: Any) -> list[type[Event]]:
    return [type(event) for event in commands.resume(one, limits, changes, NOW, reason="go on")]


def test_running_job_is_paused_and_a_repeat_changes_nothing() -> None:
    [event] = commands.pause(job(*LIVES), NOW, "a weekend")

    assert event == PauseRequested(at=NOW, reason="a weekend")
    assert commands.pause(advance(job(*LIVES), event), NOW, "again") == ()
    assert commands.pause(job(*WAITS), NOW, "again") == ()


@pytest.mark.parametrize("last", [CancelRequested(at=at(30)), finished(30)])
def test_ending_job_cannot_be_paused(last: Event) -> None:
    with pytest.raises(NotPossibleNow, match=r"cannot be paused: it (is stopping|has ended)"):
        commands.pause(job(*LIVES, last), NOW, "too late")


def test_a_cancel_of_a_paused_job_ends_it_at_once() -> None:
    recorded = commands.cancel(job(*WAITS), NOW, "enough")

    ended = job(*WAITS, *recorded)
    assert [type(event) for event in recorded] == [CancelRequested, Finished]
    assert (ended.outcome, ended.detail) == (Outcome.CANCELLED, "enough")
    assert commands.cancel(ended, NOW, "again") == ()


def test_pausing_job_can_be_cancelled() -> None:
    [event] = commands.cancel(job(*LIVES, pausing(100)), NOW, "enough")

    assert isinstance(event, CancelRequested)


def test_only_paused_jobs_can_be_resumed() -> None:
    assert resume_events(job(*WAITS)) == [ResumeRequested]
    for events, why in (
        (LIVES, "it is training; only paused jobs"),
        ((*LIVES, pausing(30)), "it is pausing, and its nodes may still run"),
        ((*WAITS, resumed(200)), "it is queued"),
        ((*LIVES, finished(30)), "it has ended"),
    ):
        with pytest.raises(NotPossibleNow, match=why):
            resume_events(job(*events))


def test_resume_records_changed_limits_first() -> None:
    recorded = commands.resume(job(*WAITS), Limits(max_cost_usd=100), {"max_cost_usd": 800}, NOW, reason="")  # fmt: skip

    assert isinstance(recorded[0], LimitsChanged)
    assert (recorded[0].changed, recorded[0].limits["max_cost_usd"]) == (("max_cost_usd",), "800")
    assert isinstance(recorded[1], ResumeRequested)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"max_cost_usd": 100}, r"max_cost_usd must be above 220$"),
        ({"max_cost_usd": 220}, r"only covers saving; max_cost_usd must be above 220$"),
        ({"deadline": "15m"}, r"deadline must be after 2026-03-01 12:16:40Z, or more than 17m$"),
        ({"max_duration": "100s"}, r"max_duration must be more than 2m$"),
    ],
)  # fmt: skip
def test_resume_that_would_trip_is_refused_with_the_minimum(
    limits: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotPossibleNow, match=why):
        resume_events(job(*WAITS), Limits(**limits))


@pytest.mark.parametrize(
    ("limits", "enough"),
    [
        ({"max_cost_usd": 100}, {"max_cost_usd": 220.01}),
        ({"max_cost_usd": 100}, {"max_cost_usd": None}),
        ({"deadline": "15m"}, {"deadline": "17m"}),
        ({"max_duration": "100s"}, {"max_duration": "2m"}),
    ],
)
def test_suggested_limit_is_sufficient_to_resume(
    limits: dict[str, Any], enough: dict[str, Any]
) -> None:
    assert resume_events(job(*WAITS), Limits(**limits), **enough) == [
        LimitsChanged,
        ResumeRequested,
    ]


def test_consecutive_counts_restart_after_a_pause() -> None:
    waited = job(submitted(), launched(), tripped(500, Guard.MAX_WAIT), paused(510))

    assert immediate_pause_reason(waited, Limits(max_wait="5m"), NOW) is None


def test_most_recently_changed_limits_apply() -> None:
    one = job(*WAITS, relimited(120, max_cost_usd=90))

    with pytest.raises(NotPossibleNow, match="max_cost_usd"):
        resume_events(one, one.limits or Limits())


@pytest.mark.parametrize(
    ("guard", "limits", "command"),
    [
        (Guard.MAX_COST, {"max_cost_usd": "12.5"}, "resume with: holdfast resume job-1 --max-cost 25"),
        (Guard.MAX_HOURLY_COST, {"max_hourly_cost_usd": 3}, "resume with: holdfast resume job-1 --max-hourly-cost 6"),
        (Guard.DEADLINE, {"deadline": "48h"}, "resume with: holdfast resume job-1 --deadline 96h"),
        (Guard.MAX_DURATION, {"max_duration": "90m"}, "resume with: holdfast resume job-1 --max-duration 3h"),
        (Guard.ZERO_PROGRESS, {}, "resume with: holdfast resume job-1"),
        (Guard.BUDGET, {}, "once its budget allows it, resume with: holdfast resume job-1"),
    ],
)  # fmt: skip
def test_resume_hint_names_the_limit_to_raise(
    guard: Guard, limits: dict[str, Any], command: str
) -> None:
    assert command in resume_command(stopped(guard), Limits(**limits))


def test_limits_are_changed_by_name_and_the_others_stay() -> None:
    before = Limits(max_cost_usd=5, max_wait="2h", max_failures=7)

    [event] = commands.change_limits(
        job(*LIVES), before, {"max_cost_usd": 6, "max_wait": None}, NOW
    )

    assert isinstance(event, LimitsChanged)
    assert Limits.model_validate(event.limits) == Limits(max_cost_usd=6, max_failures=7)
    assert event.changed == ("max_cost_usd", "max_wait")


def test_change_to_equal_limits_records_no_event() -> None:
    assert (
        commands.change_limits(job(*LIVES), Limits(max_cost_usd=5), {"max_cost_usd": "5.00"}, NOW)
        == ()
    )


@pytest.mark.parametrize(
    ("changes", "place", "why"),
    [
        ({"max_cost_usd": -1}, "#/max_cost_usd", "not above 0"),
        ({"deadline": "soon"}, "#/deadline", "is not a deadline"),
        ({"deadline": "5s"}, "#/deadline", "is in the past; write a future time"),
        ({"max_failures": 0}, "#/max_failures", "greater than or equal to 1"),
        ({"max_cost": 5}, "#/max_cost", "did you mean 'max_cost_usd'"),
    ],
)
def test_invalid_limits_are_refused_with_their_fields(
    changes: dict[str, Any], place: str, why: str
) -> None:
    with pytest.raises(BadLimits) as caught:
        commands.change_limits(job(*LIVES), Limits(), changes, NOW)

    [flaw] = caught.value.issues
    assert flaw.pointer == place
    assert why in flaw.message


def test_limits_of_an_ended_job_cannot_be_changed() -> None:
    with pytest.raises(NotPossibleNow, match="it has ended"):
        commands.change_limits(job(*LIVES, finished(30)), Limits(), {"max_cost_usd": 6}, NOW)
