"""Stopping a job, by its limits or by a user: its work is saved and its nodes are released."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.events import (
    CancelRequested,
    CapacityLost,
    Cause,
    CleanedUp,
    CleanupFailed,
    Event,
    Finished,
    Guard,
    GuardTripped,
    LeftReason,
    Outcome,
    Paused,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.guards import SAVE_GRACE_S
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation
from holdfast.domain.jobs.reconcile import (
    MAX_LAUNCHES,
    Effect,
    ReconcileContext,
    ReconcilePlan,
    decide,
)
from support.events import (
    at,
    launched,
    left,
    lost,
    noticed,
    paused,
    pausing,
    placement,
    ready,
    resumed,
    submitted,
    training,
    tripped,
)

NOW = at(1000)
CANCEL = CancelRequested(at=NOW, reason="out of money")
STARTS = (submitted(), launched(1), ready(10))
TRAINS = (*STARTS, training(20))
UP = Observation(
    status=LaunchStatus.UP, since=at(10), placements=1, recent_placements=(placement(10),)
)
WAITING = Observation(status=LaunchStatus.WAITING, since=at(1))
GONE = replace(
    UP,
    status=LaunchStatus.WAITING,
    since=at(30),
    recent_placements=(placement(10, 30, cause=Cause.NODE_FAILED),),
)
FORGOTTEN = replace(UP, status=LaunchStatus.FORGOTTEN, since=at(40))
POOR = ReconcileContext(limits=Limits(max_cost_usd=0.5))
"""The nodes of these jobs cost 3.60 dollars an hour, so 500 s are too long."""
NO_SAVE_ON_CANCEL = ReconcileContext(has_store=True, saves_on_cancel=False)


def job(*events: Event) -> Job:
    return fold("job-1", events)


def ended(outcome: Outcome, *, exit_code: int | None = None) -> Observation:
    end = LaunchResult(at=at(60), outcome=outcome, exit_code=exit_code, detail="by its word")
    return replace(UP, status=LaunchStatus.ENDED, since=at(60), result=end)


def after(before: Job, plan: ReconcilePlan) -> Job:
    for event in plan.record:
        before = advance(before, event)
    return before


# Causes of capacity loss


def test_nodes_that_are_lost_after_a_notice_were_preempted() -> None:
    result = decide(job(*TRAINS, noticed(25)), GONE, NOW)
    left_on_notice = decide(job(*TRAINS, left(25, step=7)), GONE, NOW)
    silent = decide(job(*TRAINS), GONE, NOW)

    assert [plan.record[0].cause for plan in (result, left_on_notice, silent)] == [
        Cause.PREEMPTED,
        Cause.PREEMPTED,
        Cause.NODE_FAILED,
    ]


def test_notice_applies_to_its_own_attempt_only() -> None:
    trail = (
        placement(10, 30, cause=Cause.NODE_FAILED),
        placement(40, 70, cause=Cause.NODE_FAILED),
        placement(80, 90, cause=Cause.NODE_FAILED),
    )
    seen = Observation(
        status=LaunchStatus.WAITING, since=at(90), placements=3, recent_placements=trail
    )

    plan = decide(job(*TRAINS, noticed(25), noticed(85, attempt=3)), seen, NOW)

    losses = [event for event in plan.record if isinstance(event, CapacityLost)]
    assert [loss.cause for loss in losses] == [
        Cause.PREEMPTED,
        Cause.NODE_FAILED,
        Cause.PREEMPTED,
    ]


@pytest.mark.parametrize(
    "cause", [Cause.LAUNCHER_RESTARTED, Cause.USER_ERROR, Cause.LAUNCHER_FORGOT]
)
def test_specific_loss_cause_from_launcher_is_kept(cause: Cause) -> None:
    seen = replace(GONE, recent_placements=(placement(10, 30, cause=cause),))

    plan = decide(job(*TRAINS, noticed(25)), seen, NOW)

    assert plan.record[0].cause is cause


def test_undated_loss_after_a_notice_is_a_preemption() -> None:
    seen = replace(GONE, recent_placements=(placement(10),))

    plan = decide(job(*TRAINS, noticed(25)), seen, NOW)

    assert plan.record[0].cause is Cause.PREEMPTED


# Guards


def test_tripped_guard_is_recorded_and_cancels_the_launch() -> None:
    before = job(*TRAINS)

    plan = decide(before, UP, NOW, POOR)

    [recorded] = plan.record
    assert isinstance(recorded, GuardTripped)
    assert (recorded.guard, recorded.at) == (Guard.MAX_COST, NOW)
    assert plan.effect is Effect.CANCEL
    assert after(before, plan).state is State.PAUSING
    assert decide(after(before, plan), UP, NOW, POOR) == ReconcilePlan((), Effect.CANCEL)


def test_guard_counts_events_of_the_current_observation() -> None:
    trail = (placement(10, 500), placement(600))
    seen = Observation(status=LaunchStatus.UP, since=at(600), placements=2, recent_placements=trail)

    plan = decide(job(*TRAINS), seen, at(610), POOR)

    kinds = [type(event).__name__ for event in plan.record]
    assert kinds == ["CapacityLost", "NodesReady", "GuardTripped"]


def test_ended_launch_trips_no_guard() -> None:
    plan = decide(job(*TRAINS), ended(Outcome.SUCCEEDED, exit_code=0), NOW, POOR)

    [recorded] = plan.record
    assert isinstance(recorded, Finished)
    assert recorded.outcome is Outcome.SUCCEEDED


def test_program_with_fatal_exit_is_not_restarted() -> None:
    exit_report = left(25, step=0, reason=LeftReason.FAILED, exit_code=78)
    before = job(*STARTS, replace(exit_report, detail="there is no bucket nowhere"))
    gone = replace(GONE, recent_placements=(placement(10, 30, cause=Cause.USER_ERROR),))

    plan = decide(before, gone, NOW)
    stopping = after(before, plan)
    [end] = decide(stopping, ended(Outcome.CANCELLED), NOW).record

    assert [type(event) for event in plan.record] == [CapacityLost, GuardTripped]
    assert (stopping.state, plan.effect) == (State.STOPPING, Effect.CANCEL)
    assert end.outcome is Outcome.FAILED
    assert end.detail.endswith("the worker exited with exit code 78: there is no bucket nowhere")


def test_job_with_a_tripped_guard_is_not_launched() -> None:
    forgotten = decide(job(*TRAINS), replace(FORGOTTEN, since=at(900)), NOW, POOR)
    queued = decide(job(submitted()), None, NOW, ReconcileContext(limits=Limits(deadline="10s")))

    assert [type(event).__name__ for event in forgotten.record] == [
        "CapacityLost",
        "GuardTripped",
        "Paused",
    ]
    assert [type(event).__name__ for event in queued.record] == ["GuardTripped", "Paused"]
    for plan in (forgotten, queued):
        assert plan.effect is None
        assert plan.record[-1].detail.startswith(
            f"{plan.record[-2].detail}; resume with: holdfast resume job-1"
        )


def test_job_stopped_by_guard_before_any_launch_has_failed() -> None:
    stopping = job(submitted(), tripped(50, Guard.MAX_FAILURES, detail="it failed 3 times"))

    plan = decide(stopping, None, NOW)

    assert plan == ReconcilePlan(
        (Finished(at=NOW, outcome=Outcome.FAILED, detail="it failed 3 times"),)
    )


def test_cancelled_launch_after_a_pause_does_not_end_the_job() -> None:
    before = job(*TRAINS, pausing(50))

    plan = decide(before, ended(Outcome.CANCELLED), NOW, NO_SAVE_ON_CANCEL)
    after_it = after(before, plan)

    assert [type(recorded) for recorded in plan.record] == [CapacityLost, Paused]
    assert (plan.record[0].cause, plan.record[0].at) == (Cause.PAUSED, at(60))
    assert (after_it.state, after_it.account.paid_micros) == (State.PAUSED, 50_000)
    assert after_it.detail == "a long weekend; resume with: holdfast resume job-1"
    assert decide(after_it, ended(Outcome.CANCELLED), NOW, NO_SAVE_ON_CANCEL) == ReconcilePlan()


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED])
def test_job_that_ends_before_its_pause_is_finished(outcome: Outcome) -> None:
    [recorded] = decide(job(*TRAINS, pausing(50)), ended(outcome, exit_code=3), NOW).record

    assert isinstance(recorded, Finished)
    assert (recorded.outcome, recorded.exit_code, recorded.detail) == (outcome, 3, "by its word")


@pytest.mark.parametrize(
    "before",
    [(submitted(), launched(1)), (submitted(), launched(1), ready(10), lost(20), launched(30, launch=2))],
    ids=["the first launch", "another one"],
)  # fmt: skip
def test_a_launch_in_flight_is_revoked_before_a_job_is_paused(before: tuple[Event, ...]) -> None:
    """It is unknown whether the submission was sent; it may still arrive."""
    pausing_job = job(*before, pausing(50))

    unseen = decide(pausing_job, Observation(status=LaunchStatus.ABSENT, since=NOW), NOW)
    waiting = decide(pausing_job, WAITING, NOW)
    end = LaunchResult(at=at(60), outcome=Outcome.CANCELLED)
    revoked = Observation(status=LaunchStatus.ENDED, since=at(60), result=end)

    assert unseen == waiting == ReconcilePlan((), Effect.CANCEL)
    assert [type(recorded) for recorded in decide(pausing_job, revoked, NOW).record] == [Paused]


def test_job_never_launched_is_paused_immediately() -> None:
    plan = decide(job(submitted(), pausing(50)), None, NOW)

    assert [type(recorded) for recorded in plan.record] == [Paused]


def test_resumed_job_is_launched_under_a_new_key() -> None:
    """Its old launch is cancelled, and looks as if the job had ended."""
    one = job(*TRAINS, pausing(50), lost(60, cause=Cause.PAUSED), paused(60), resumed(70))

    plan = decide(one, ended(Outcome.CANCELLED), NOW)
    cancelled = decide(advance(one, CANCEL), ended(Outcome.CANCELLED), NOW)

    assert plan == ReconcilePlan((launched(1000, launch=2),), Effect.SUBMIT)
    [recorded] = cancelled.record
    assert (recorded.outcome, recorded.at, cancelled.effect) == (Outcome.CANCELLED, NOW, None)


def test_lost_launches_before_a_pause_do_not_count_after_resume() -> None:
    before_pause: list[Event] = [submitted()]
    for launch in range(1, MAX_LAUNCHES + 1):
        before_pause += [launched(launch, launch=launch), lost(launch, attempt=0)]
    exhausted = job(*before_pause)
    rested = job(*before_pause, pausing(50), paused(60), resumed(70))

    nothing = Observation(status=LaunchStatus.FORGOTTEN, since=at(40))
    assert [type(recorded) for recorded in decide(exhausted, nothing, NOW).record] == [Finished]
    assert decide(rested, None, NOW).effect is Effect.SUBMIT


@pytest.mark.parametrize("outcome", Outcome)
def test_guard_stopped_job_fails_unless_program_succeeded(outcome: Outcome) -> None:
    stopping = job(*TRAINS, tripped(50, Guard.MAX_FAILURES, detail="too dear"))

    [recorded] = decide(stopping, ended(outcome), NOW).record

    succeeded = outcome is Outcome.SUCCEEDED
    assert recorded.outcome is (Outcome.SUCCEEDED if succeeded else Outcome.FAILED)
    assert recorded.detail == ("by its word" if succeeded else "too dear")


def test_program_failure_during_cancel_ends_as_failed() -> None:
    [recorded] = decide(job(*TRAINS, CANCEL), ended(Outcome.FAILED, exit_code=1), NOW).record

    assert (recorded.outcome, recorded.detail) == (Outcome.FAILED, "by its word")


def test_each_leftover_is_recorded_separately_after_the_end() -> None:
    before = job(*TRAINS)
    seen = replace(ended(Outcome.CANCELLED), leftovers=("cluster hf-1 in aws", "cluster hf-2"))

    plan = decide(before, seen, NOW)
    result = after(before, plan)
    gone = advance(result, CleanedUp(at=at(70), detail="cluster hf-1 in aws"))

    assert [type(recorded) for recorded in plan.record] == [Finished, CleanupFailed, CleanupFailed]
    assert plan.record[1] == CleanupFailed(at=at(60), detail="cluster hf-1 in aws")
    assert result.warning == "nodes may still be billed: cluster hf-1 in aws; cluster hf-2"
    assert gone.warning == "nodes may still be billed: cluster hf-2"


@pytest.mark.parametrize("events", [TRAINS, (*TRAINS, CANCEL)])
def test_leftovers_of_forgotten_launch_are_recorded_once(
    events: tuple[Event, ...],
) -> None:
    before = job(*events)
    seen = replace(FORGOTTEN, leftovers=("cluster hf-1",))

    result = after(before, decide(before, seen, NOW))
    again = decide(result, seen, NOW) if result.state is not State.ENDED else ReconcilePlan()

    assert result.leftovers == ("cluster hf-1",)
    assert not [recorded for recorded in again.record if isinstance(recorded, CleanupFailed)]


# Time to save


@pytest.mark.parametrize("stop", [CANCEL, tripped(1000), pausing(1000)])
def test_training_worker_gets_time_to_save_before_release(
    stop: Event,
) -> None:
    stopping = job(*TRAINS, stop)

    assert decide(stopping, UP, at(1000), NO_SAVE_ON_CANCEL) == ReconcilePlan()
    assert decide(stopping, UP, at(999 + SAVE_GRACE_S), NO_SAVE_ON_CANCEL) == ReconcilePlan()
    assert decide(stopping, UP, at(1000 + SAVE_GRACE_S), NO_SAVE_ON_CANCEL) == ReconcilePlan(
        (), Effect.CANCEL
    )


def test_worker_that_has_exited_is_not_awaited() -> None:
    stopping = job(*TRAINS, CANCEL, left(1010, step=7))

    assert decide(stopping, UP, at(1011), NO_SAVE_ON_CANCEL) == ReconcilePlan((), Effect.CANCEL)


def test_worker_that_just_finished_may_still_succeed() -> None:
    done = left(1010, step=7, reason=LeftReason.FINISHED, exit_code=0)

    assert decide(job(*TRAINS, CANCEL, done), UP, at(1011), NO_SAVE_ON_CANCEL) == ReconcilePlan()


def test_cancel_with_lost_nodes_skips_saving() -> None:
    plan = decide(job(*TRAINS, CANCEL), GONE, NOW, NO_SAVE_ON_CANCEL)

    assert [type(event) for event in plan.record] == [CapacityLost]
    assert plan.effect is Effect.CANCEL


@pytest.mark.parametrize(
    ("events", "terms"),
    [
        (STARTS, NO_SAVE_ON_CANCEL),
        (TRAINS, replace(NO_SAVE_ON_CANCEL, has_store=False)),
        (TRAINS, replace(NO_SAVE_ON_CANCEL, saves_on_cancel=True)),
        ((*TRAINS, lost(30), ready(40, attempt=2)), NO_SAVE_ON_CANCEL),
    ],
    ids=["never trained", "no store", "grace period of the launcher", "not in this attempt"],
)
def test_job_with_nothing_to_save_is_cancelled_immediately(
    events: tuple[Event, ...], terms: ReconcileContext
) -> None:
    stopping = job(*events, CANCEL)
    trail = (placement(10, 30), placement(40))[-stopping.attempt :]
    seen = replace(UP, placements=stopping.attempt, recent_placements=trail)

    assert decide(stopping, seen, NOW, terms) == ReconcilePlan((), Effect.CANCEL)


def test_a_launch_that_waits_for_nodes_is_cancelled_at_once() -> None:
    stopping = job(submitted(), launched(1), CANCEL)

    assert decide(stopping, WAITING, NOW, NO_SAVE_ON_CANCEL) == ReconcilePlan((), Effect.CANCEL)
