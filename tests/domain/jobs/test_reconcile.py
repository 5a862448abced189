"""Decisions of the reconciler, from a job and one observation of its launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.events import (
    CancelRequested,
    CapacityDenied,
    CapacityLost,
    Cause,
    CleanupFailed,
    Event,
    Finished,
    LaunchRequested,
    NodesReady,
    Outcome,
)
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation
from holdfast.domain.jobs.reconcile import MAX_LAUNCHES, Effect, ReconcilePlan, decide
from support.events import (
    at,
    denial,
    denied,
    finished,
    launched,
    lost,
    placement,
    ready,
    submitted,
    training,
)

NOW = at(1000)
CANCEL = CancelRequested(at=at(50), reason="out of money")
QUEUED = (submitted(),)
ASKED = (*QUEUED, launched(1))
PLACED = (*ASKED, ready(10))
TRAINS = (*PLACED, training(20))
RECOVERS = (*TRAINS, lost(30))

ABSENT = Observation(status=LaunchStatus.ABSENT, since=NOW)
WAITING = Observation(status=LaunchStatus.WAITING, since=at(1))
UP = Observation(
    status=LaunchStatus.UP, since=at(10), placements=1, recent_placements=(placement(10),)
)
LOST = replace(
    UP, status=LaunchStatus.WAITING, since=at(30), recent_placements=(placement(10, 30),)
)
LEFT = "SkyPilot cluster hf-job-1-7"
UNKNOWN = Observation(status=LaunchStatus.UNKNOWN, since=at(40), leftovers=(LEFT,))
FORGOTTEN = replace(UP, status=LaunchStatus.FORGOTTEN, since=at(40))
ENDED = replace(
    UP,
    status=LaunchStatus.ENDED,
    since=at(60),
    result=LaunchResult(at=at(60), outcome=Outcome.SUCCEEDED, exit_code=0),
)
CANCELLED = Observation(
    status=LaunchStatus.ENDED,
    since=at(60),
    result=LaunchResult(at=at(60), outcome=Outcome.CANCELLED, detail="told to stop"),
)


def job(*events: Event) -> Job:
    return fold("job-1", events)


def after(before: Job, plan: ReconcilePlan) -> Job:
    for event in plan.record:
        before = advance(before, event)
    return before


def kinds(plan: ReconcilePlan) -> list[type[Event]]:
    return [type(event) for event in plan.record]


def test_new_job_records_launch_request_before_submitting() -> None:
    plan = decide(job(*QUEUED), None, NOW)

    assert plan == ReconcilePlan((LaunchRequested(at=NOW, launch=1),), Effect.SUBMIT)


def test_job_cancelled_before_launch_ends_without_launching() -> None:
    plan = decide(job(*QUEUED, CANCEL), None, NOW)

    assert plan == ReconcilePlan(
        (Finished(at=NOW, outcome=Outcome.CANCELLED, detail="out of money"),)
    )


def test_recorded_launch_absent_from_launcher_is_resubmitted() -> None:
    plan = decide(job(*ASKED), ABSENT, NOW)

    assert plan == ReconcilePlan((), Effect.SUBMIT)


def test_unknown_launch_after_denials_gets_a_new_key() -> None:
    """The launcher accepted and then refused it. The same key would return the lost launch."""
    plan = decide(job(*ASKED, denied(5)), ABSENT, NOW)

    assert kinds(plan) == [CapacityLost, LaunchRequested]
    assert plan.record[-1] == launched(1000, launch=2)
    assert plan.effect is Effect.SUBMIT


def test_pending_launch_is_only_observed() -> None:
    assert decide(job(*ASKED), WAITING, NOW) == ReconcilePlan()


def test_ready_nodes_are_recorded_once_with_their_ready_time() -> None:
    before = job(*ASKED)

    first = decide(before, UP, NOW)
    again = decide(after(before, first), UP, NOW)

    assert first == ReconcilePlan((ready(10),))
    assert again == ReconcilePlan()


def test_healthy_job_is_left_unchanged() -> None:
    assert decide(job(*TRAINS), UP, NOW) == ReconcilePlan()


def test_preemption_is_recorded_once_with_time_and_cause() -> None:
    before = job(*TRAINS)

    first = decide(before, LOST, NOW)
    again = decide(after(before, first), LOST, NOW)

    assert first == ReconcilePlan((lost(30, cause=Cause.PREEMPTED),))
    assert again == ReconcilePlan()


def test_preemption_between_observations_is_recorded() -> None:
    seen = Observation(
        status=LaunchStatus.UP,
        since=at(900),
        placements=3,
        recent_placements=(
            placement(10, 30),
            placement(40, 70, zone="b"),
            placement(900, zone="c"),
        ),
    )

    plan = decide(job(*TRAINS), seen, NOW)

    assert plan == ReconcilePlan(
        (
            lost(30, attempt=1),
            ready(40, attempt=2, zone="b"),
            lost(70, attempt=2),
            ready(900, attempt=3, zone="c"),
        )
    )


def test_forgotten_placements_are_recorded_with_zero_duration() -> None:
    seen = Observation(
        status=LaunchStatus.UP,
        since=at(900),
        placements=4,
        recent_placements=(placement(900, zone="b"),),
    )

    plan = decide(job(*TRAINS), seen, NOW)

    assert kinds(plan) == [CapacityLost, NodesReady] * 3
    assert [event.at for event in plan.record] == [at(900)] * 6


def test_forgotten_placements_precede_reported_ones() -> None:
    """Otherwise a remembered attempt would begin before its predecessors ended.

    It would cost nothing.
    """
    seen = Observation(
        status=LaunchStatus.WAITING,
        since=at(950),
        placements=2,
        recent_placements=(placement(900, 950),),
    )

    plan = decide(job(*TRAINS), seen, NOW)

    assert [(type(event), event.at) for event in plan.record] == [
        (CapacityLost, at(900)),
        (NodesReady, at(900)),
        (CapacityLost, at(950)),
    ]


def test_a_loss_without_notice_or_reason_is_no_preemption() -> None:
    seen = replace(LOST, recent_placements=(placement(10),))

    plan = decide(job(*TRAINS), seen, NOW)

    assert kinds(plan) == [CapacityLost]
    assert plan.record[0].cause is Cause.NODE_FAILED


def test_denials_are_recorded_once_in_order_with_placements() -> None:
    before = job(*ASKED, denied(2))
    seen = Observation(
        status=LaunchStatus.WAITING,
        since=at(30),
        placements=1,
        recent_placements=(placement(10, 30),),
        denials=(denial(2), denial(4, "b"), denial(40, "c")),
    )

    first = decide(before, seen, NOW)
    again = decide(after(before, first), seen, NOW)

    assert first == ReconcilePlan((denied(4, zone="b"), ready(10), lost(30), denied(40, zone="c")))
    assert again == ReconcilePlan()


def test_denial_with_a_slow_clock_precedes_the_nodes() -> None:
    seen = replace(UP, denials=(denial(11),))

    plan = decide(job(*ASKED), seen, NOW)

    assert plan == ReconcilePlan((denied(11), ready(10)))


def test_late_denial_is_recorded_only_after_nodes_are_lost() -> None:
    unchanged_plan = decide(job(*TRAINS), replace(UP, denials=(denial(9),)), NOW)
    gone = decide(job(*TRAINS), replace(LOST, denials=(denial(9),)), NOW)

    assert unchanged_plan == ReconcilePlan()
    assert gone == ReconcilePlan((lost(30), denied(9)))


def test_unknown_launch_is_reported_and_not_relaunched() -> None:
    first = decide(job(*TRAINS), UNKNOWN, NOW)
    later = decide(job(*TRAINS, CleanupFailed(at=at(40), detail=LEFT)), UNKNOWN, NOW)

    assert first == ReconcilePlan((CleanupFailed(at=at(40), detail=LEFT),), None)
    assert later == ReconcilePlan()


def test_unknown_launch_is_cancelled_on_request() -> None:
    stopping_job = job(*TRAINS, CleanupFailed(at=at(40), detail=LEFT), CANCEL)

    assert decide(stopping_job, UNKNOWN, NOW) == ReconcilePlan((), Effect.CANCEL)


def test_forgotten_launch_is_resubmitted_under_new_key() -> None:
    before = job(*TRAINS)

    plan = decide(before, FORGOTTEN, NOW)

    assert kinds(plan) == [CapacityLost, LaunchRequested]
    assert (plan.record[0].at, plan.record[0].cause) == (at(40), Cause.LAUNCHER_FORGOT)
    assert plan.effect is Effect.SUBMIT
    assert after(before, plan).launch_key == "job-1-2"


def test_launch_forgotten_before_nodes_is_resubmitted() -> None:
    seen = Observation(status=LaunchStatus.FORGOTTEN, since=at(40))

    plan = decide(job(*ASKED), seen, NOW)

    assert kinds(plan) == [CapacityLost, LaunchRequested]
    assert plan.record[0].attempt == 0


def test_launch_forgotten_after_node_loss_records_one_loss() -> None:
    seen = replace(LOST, status=LaunchStatus.FORGOTTEN, since=at(40))

    unwatched = decide(job(*ASKED), seen, NOW)
    watched = decide(job(*RECOVERS), seen, NOW)

    assert kinds(unwatched) == [NodesReady, CapacityLost, LaunchRequested]
    assert kinds(watched) == [LaunchRequested]
    assert after(job(*ASKED), unwatched).state is State.PROVISIONING


def test_running_launch_absent_from_launcher_is_relaunched() -> None:
    plan = decide(job(*TRAINS), ABSENT, NOW)

    assert kinds(plan) == [CapacityLost, LaunchRequested]
    assert plan.record[0].cause is Cause.LAUNCHER_FORGOT
    assert plan.record[0].attempt == 1


def test_attempts_of_a_second_launch_continue_the_count() -> None:
    before = job(*TRAINS, lost(40, cause=Cause.LAUNCHER_FORGOT), launched(41, launch=2))

    plan = decide(before, replace(UP, since=at(50), recent_placements=(placement(50),)), NOW)

    assert plan == ReconcilePlan((ready(50, attempt=2),))


def test_job_fails_if_its_launcher_forgets_every_launch() -> None:
    one = job(*QUEUED)
    launches = 0

    while one.state is not State.ENDED:
        seen = Observation(status=LaunchStatus.FORGOTTEN, since=NOW) if one.launch else None
        plan = decide(one, seen, NOW)
        launches += plan.effect is Effect.SUBMIT
        one = after(one, plan)

    assert launches == MAX_LAUNCHES
    assert one.outcome is Outcome.FAILED
    assert "check the launcher's health" in one.detail


@pytest.mark.parametrize("events", [ASKED, PLACED, TRAINS, RECOVERS])
def test_a_job_that_stops_is_cancelled_until_it_has_ended(events: tuple[Event, ...]) -> None:
    stopping = job(*events, CANCEL)
    unchanged_plan = UP if stopping.placed else WAITING if events is ASKED else LOST

    assert decide(stopping, unchanged_plan, NOW) == ReconcilePlan((), Effect.CANCEL)


def test_cancel_covers_a_launch_that_never_arrived() -> None:
    """Its key is then used up: a submit still in flight has no effect."""
    assert decide(job(*ASKED, CANCEL), ABSENT, NOW) == ReconcilePlan((), Effect.CANCEL)


def test_nodes_ready_while_stopping_are_recorded_and_cancelled() -> None:
    stopping = job(*ASKED, CANCEL)

    plan = decide(stopping, UP, NOW)

    assert plan == ReconcilePlan((ready(10),), Effect.CANCEL)
    assert after(stopping, plan).state is State.STOPPING


def test_preemption_during_a_cancel_restarts_nothing() -> None:
    plan = decide(job(*TRAINS, CANCEL), LOST, NOW)

    assert plan == ReconcilePlan((lost(30),), Effect.CANCEL)


@pytest.mark.parametrize("seen", [FORGOTTEN, ABSENT])
def test_stopping_job_ends_when_launcher_forgets_its_launch(seen: Observation) -> None:
    """Its nodes were paid for until the launcher forgot them, not until the next observation."""
    plan = decide(job(*TRAINS, CANCEL), seen, NOW)

    assert kinds(plan) == [CapacityLost, Finished]
    assert plan.record[0].at == seen.since
    assert plan.record[1].outcome is Outcome.CANCELLED
    assert plan.effect is None


def test_end_is_recorded_with_its_time_after_missed_events() -> None:
    plan = decide(job(*ASKED), ENDED, NOW)

    assert plan == ReconcilePlan((ready(10), finished(60)))


def test_late_cancel_does_not_hide_a_success() -> None:
    plan = decide(job(*TRAINS, CANCEL), ENDED, NOW)

    assert plan == ReconcilePlan((finished(60),))


def test_cancel_reason_is_that_of_its_user() -> None:
    asked = decide(job(*ASKED, CANCEL), CANCELLED, NOW)
    unasked = decide(job(*ASKED), CANCELLED, NOW)

    assert asked.record[-1].detail == "out of money"
    assert unasked.record[-1].detail == "told to stop"


@pytest.mark.parametrize("seen", [None, ABSENT, WAITING, UP, LOST, FORGOTTEN, ENDED])
def test_ended_job_is_left_unchanged(seen: Observation | None) -> None:
    assert decide(job(*TRAINS, finished(60)), seen, NOW) == ReconcilePlan()


@pytest.mark.parametrize("seen", [ABSENT, WAITING, UP, LOST, FORGOTTEN, ENDED, CANCELLED])
@pytest.mark.parametrize("events", [ASKED, PLACED, TRAINS, RECOVERS])
@pytest.mark.parametrize("command", [(), (CANCEL,)])
def test_every_decision_can_be_recorded(
    seen: Observation, events: tuple[Event, ...], command: tuple[Event, ...]
) -> None:
    before = job(*events, *command)

    plan = decide(before, seen, NOW)

    assert after(before, plan).seq == before.seq + len(plan.record)


@pytest.mark.parametrize("events", [ASKED, PLACED, TRAINS, RECOVERS])
@pytest.mark.parametrize("seen", [WAITING, UP, LOST])
def test_launch_held_by_launcher_is_never_relaunched(
    seen: Observation, events: tuple[Event, ...]
) -> None:
    plan = decide(job(*events), seen, NOW)

    assert plan.effect is None
    assert CapacityDenied not in kinds(plan)
    assert LaunchRequested not in kinds(plan)
