"""Jobs with plans: when a plan is recorded, when it moves the job, and what a move does not count as."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.events import (
    CancelRequested,
    CapacityLost,
    CapacityType,
    Cause,
    Event,
    Finished,
    Guard,
    GuardTripped,
    LaunchPlacement,
    LaunchRequested,
    Moved,
    MoveRequested,
    NodesReady,
    Outcome,
    Planned,
    PlanReason,
)
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs import commands
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
    decide_without_observation,
    ms_until_decision,
)
from support.events import (
    at,
    denied,
    launched,
    left,
    lost,
    paused,
    pausing,
    placement,
    ready,
    saved,
    submitted,
    training,
)
from support.plans import PLACES, ScriptedPlanner, planned

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
ASKS_SPOT = LaunchPlacement(capacity=SPOT, places=PLACES)
ASKED = (submitted(), planned(0), LaunchRequested(at=at(0), launch=1, placement=ASKS_SPOT))
TRAINS = (*ASKED, ready(10), training(20))
BUYS = planned(100, ON_DEMAND, reason=PlanReason.SAFETY_NET)
MOVES = (*TRAINS, BUYS, MoveRequested(at=at(100), reason="moving to on-demand nodes"))
UP = Observation(
    status=LaunchStatus.UP, since=at(10), placements=1, recent_placements=(placement(10),)
)
WAITING = Observation(status=LaunchStatus.WAITING, since=at(1))
CANCELLED = replace(
    UP,
    status=LaunchStatus.ENDED,
    since=at(130),
    result=LaunchResult(at=at(130), outcome=Outcome.CANCELLED),
)


def job(*events: Event) -> Job:
    return fold("job-1", events)


def context(choice: Planned | None = None, **known: object) -> ReconcileContext:
    return ReconcileContext(planner=ScriptedPlanner(choice or planned()), **known)  # type: ignore[arg-type]


def kinds(found: ReconcilePlan) -> list[type[Event]]:
    return [type(event) for event in found.record]


def test_first_plan_is_recorded_with_the_launch_that_it_asks_for() -> None:
    found = decide(job(submitted()), None, at(5), context())

    assert kinds(found) == [Planned, LaunchRequested]
    assert found.record[1] == LaunchRequested(at=at(5), launch=1, placement=ASKS_SPOT)
    assert found.effect is Effect.SUBMIT


def test_job_without_a_request_waits_for_the_next_look() -> None:
    waits = planned(0, None)

    found = decide(job(submitted()), None, at(5), context(waits))
    again = decide(job(submitted(), waits), None, at(6), context(waits))

    assert (kinds(found), found.effect) == ([Planned], None)
    assert again == ReconcilePlan()
    assert ms_until_decision(job(submitted(), waits), at(6), context(waits)) == 60_000


@pytest.mark.parametrize(
    ("reason", "after"),
    [
        (PlanReason.WAIT_FOR_SPOT, []),
        (PlanReason.SPOT_STANDS, []),
        (PlanReason.SPOT_IS_AVAILABLE, [Planned]),
    ],
)
def test_plan_is_recorded_when_its_reason_changes(
    reason: PlanReason, after: list[type[Event]]
) -> None:
    choice = planned(0, SPOT, reason=reason)

    assert kinds(decide(job(*TRAINS), UP, at(50), context(choice))) == after


def test_only_recorded_plans_are_forecast() -> None:
    planner = ScriptedPlanner(planned(0, SPOT, reason=PlanReason.SPOT_STANDS))

    decide(job(*TRAINS), UP, at(50), ReconcileContext(planner=planner))
    decide(job(submitted()), None, at(5), ReconcileContext(planner=planner))

    assert [choice.at for choice in planner.forecasts] == [at(5)]


def test_other_order_of_places_moves_no_request_that_waits() -> None:
    other = planned(0, SPOT, *reversed(PLACES))

    assert decide(job(*ASKED), WAITING, at(50), context(other)) == ReconcilePlan()


def test_place_that_was_not_asked_moves_a_request_that_waits() -> None:
    other = planned(0, SPOT, "azure/westeurope", reason=PlanReason.SPOT_IS_AVAILABLE)

    found = decide(job(*ASKED), WAITING, at(50), context(other))

    assert (kinds(found), found.effect) == ([Planned, MoveRequested], Effect.CANCEL)


def test_cheaper_place_moves_a_job_once() -> None:
    cheaper = planned(60, SPOT, *reversed(PLACES), reason=PlanReason.CHEAPER_PLACE)
    asks = LaunchPlacement(capacity=SPOT, places=cheaper.places)
    moved = job(
        *(*TRAINS, cheaper, MoveRequested(at=at(60), reason="moving"), Moved(at=at(70), launch=1)),
        *(LaunchRequested(at=at(70), launch=2, placement=asks), ready(80, attempt=2)),
    )
    second = replace(UP, since=at(80), recent_placements=(placement(80, zone="b"),))

    first = decide(job(*TRAINS), UP, at(60), context(cheaper))
    again = decide(moved, second, at(90), context(cheaper))

    assert kinds(first) == [Planned, MoveRequested]
    assert kinds(again) == []


def test_worker_saves_before_the_launch_of_a_moving_job_ends() -> None:
    asked = decide(job(*TRAINS), UP, at(100), context(BUYS, has_store=True, saves_on_cancel=False))
    saves = decide(job(*MOVES), UP, at(110), context(BUYS, has_store=True, saves_on_cancel=False))
    has_left = job(*MOVES, left(120, step=7))
    gone = decide(has_left, UP, at(121), context(BUYS, has_store=True, saves_on_cancel=False))
    late = decide(
        job(*MOVES),
        UP,
        at(101 + SAVE_GRACE_S),
        context(BUYS, has_store=True, saves_on_cancel=False),
    )

    assert (kinds(asked), asked.effect) == ([Planned, MoveRequested], None)
    assert (kinds(saves), saves.effect) == ([], None)
    assert gone.effect is Effect.CANCEL
    assert late.effect is Effect.CANCEL


def test_next_launch_is_requested_when_the_old_one_has_ended() -> None:
    found = decide(job(*MOVES), CANCELLED, at(140), context(BUYS))

    assert kinds(found) == [CapacityLost, Moved, LaunchRequested]
    gone, moved, launch = found.record
    assert isinstance(gone, CapacityLost)
    assert (gone.at, gone.cause) == (at(130), Cause.MOVED)
    assert moved == Moved(at=at(140), launch=1)
    assert launch == LaunchRequested(
        at=at(140), launch=2, placement=LaunchPlacement(capacity=ON_DEMAND, places=PLACES)
    )
    assert found.effect is Effect.SUBMIT


def test_plan_is_made_anew_when_the_old_launch_has_ended() -> None:
    back = planned(0, SPOT, reason=PlanReason.SPOT_IS_AVAILABLE)

    found = decide(job(*MOVES), CANCELLED, at(140), context(back))

    assert kinds(found) == [CapacityLost, Moved, Planned, LaunchRequested]
    assert isinstance(launch := found.record[-1], LaunchRequested)
    assert launch.placement == ASKS_SPOT


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED])
def test_program_that_ends_during_a_move_ends_the_job(outcome: Outcome) -> None:
    ended = replace(CANCELLED, result=LaunchResult(at=at(130), outcome=outcome, exit_code=0))

    found = decide(job(*MOVES), ended, at(140), context(BUYS))

    assert kinds(found) == [Finished]


def test_loss_during_a_move_is_followed_by_the_next_launch() -> None:
    forgotten = replace(UP, status=LaunchStatus.FORGOTTEN, since=at(120))

    found = decide(job(*MOVES), forgotten, at(140), context(BUYS))

    assert kinds(found) == [CapacityLost, Moved]


def test_silent_launcher_lets_plans_change_and_moves_nothing() -> None:
    found = decide_without_observation(job(*TRAINS), at(100), context(BUYS))
    after = job(*TRAINS, *found.record)

    assert (kinds(found), found.effect) == ([Planned], None)
    assert kinds(decide(after, UP, at(120), context(BUYS))) == [MoveRequested]


def test_pause_cancel_and_guards_win_over_a_move() -> None:
    now = at(110)
    stop = job(*MOVES, CancelRequested(at=now))
    pause = job(*MOVES, *commands.pause(job(*MOVES), now, "later"))
    limits = Limits(deadline="105s")

    assert (stop.state, pause.state) == (State.STOPPING, State.PAUSING)
    assert (stop.stop_asked_at, pause.stop_asked_at) == (at(100), at(100))
    found = decide(job(*MOVES), UP, now, context(BUYS, limits=limits))
    assert isinstance(tripped := found.record[0], GuardTripped)
    assert tripped.guard is Guard.DEADLINE
    assert kinds(decide(pause, CANCELLED, at(140), context(BUYS)))[-1].__name__ == "Paused"


def test_paused_job_is_not_planned() -> None:
    rests = job(*TRAINS, pausing(30), lost(40, cause=Cause.PAUSED), paused(50))

    assert decide(rests, None, at(60), context(BUYS)) == ReconcilePlan()


def moved_often(times: int) -> Job:
    """A job that has moved, each time without a checkpoint."""
    one = job(*ASKED)
    for number in range(1, times + 1):
        second = 100 * number
        for event in (
            ready(second, attempt=number),
            training(second + 1, attempt=number),
            MoveRequested(at=at(second + 2), reason="moving"),
            lost(second + 3, attempt=number, cause=Cause.MOVED),
            Moved(at=at(second + 4), launch=number),
            LaunchRequested(at=at(second + 5), launch=number + 1, placement=ASKS_SPOT),
        ):
            one = advance(one, event)
    return one


def test_fifty_moves_count_neither_as_losses_nor_as_launches() -> None:
    one = moved_often(50)
    seen = replace(WAITING, since=at(9000))
    forgotten = Observation(status=LaunchStatus.FORGOTTEN, since=at(9000))

    assert (one.preemptions, one.failures, one.launch) == (0, 0, 51)
    assert decide(one, seen, at(5200), context(limits=Limits(max_fruitless=2))) == ReconcilePlan()
    again = decide(one, forgotten, at(9001), context())
    assert kinds(again) == [CapacityLost, LaunchRequested]


def test_launches_that_the_launcher_lost_still_count() -> None:
    one = moved_often(5)
    for number in range(7, 6 + MAX_LAUNCHES):
        gone = lost(9000 + number, attempt=0, cause=Cause.LAUNCHER_FORGOT)
        asks = LaunchRequested(at=at(9000 + number), launch=number, placement=ASKS_SPOT)
        one = advance(advance(one, gone), asks)
    forgotten = Observation(status=LaunchStatus.FORGOTTEN, since=at(9100))

    assert kinds(decide(one, forgotten, at(9101), context()))[-1] is Finished


def test_deliberate_wait_is_no_wait_for_nodes() -> None:
    limits = Limits(max_wait="60s")
    buys = LaunchRequested(
        at=at(200), launch=2, placement=LaunchPlacement(capacity=ON_DEMAND, places=PLACES)
    )
    bought = (*ASKED, BUYS, MoveRequested(at=at(100), reason="moving"), Moved(at=at(200), launch=1))

    waits = decide(job(*ASKED, denied(5)), WAITING, at(5000), context(limits=limits))
    early = decide(job(*bought, buys), WAITING, at(150), context(BUYS, limits=limits))
    late = decide(job(*bought, buys), WAITING, at(161), context(BUYS, limits=limits))

    assert waits == ReconcilePlan()
    assert kinds(early) == []
    assert isinstance(tripped := late.record[0], GuardTripped)
    assert tripped.guard is Guard.MAX_WAIT


def test_move_is_no_gap_in_the_bill() -> None:
    one = job(*MOVES, lost(130, cause=Cause.MOVED), Moved(at=at(140), launch=1))

    assert (one.state, one.is_launched, one.placed) == (State.QUEUED, False, False)
    assert one.account.paid_micros == 120_000
    assert one.account.free_since == at(130)
    assert one.stop_asked_at is None


def test_steps_are_timed_from_checkpoint_to_checkpoint() -> None:
    one = job(*TRAINS, saved(120, step=10), saved(320, step=50))
    lost_steps = job(
        *(*TRAINS, saved(120, step=10), lost(200), ready(210, attempt=2)),
        *(training(220, attempt=2, step=10), saved(260, attempt=2, step=20)),
    )

    assert one.pace.step_s == pytest.approx(300 / 50, rel=0.05)
    assert lost_steps.pace.steps == 20
    assert job(*TRAINS).pace.step_s is None


def test_first_launch_of_a_job_without_a_plan_is_as_ever() -> None:
    found = decide(job(submitted()), None, at(5))

    assert found.record == (launched(5),)


def test_moving_job_keeps_observing_its_nodes() -> None:
    started = job(*ASKED, MoveRequested(at=at(5), reason="moving"))

    found = decide(started, UP, at(12), context(BUYS))

    assert kinds(found) == [NodesReady]
    assert found.effect is Effect.CANCEL
