"""Preemptions that a user requested are distinguished from those of the spot market."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.events import CapacityLost, Cause, Event, NodeLost
from holdfast.domain.jobs.drills import (
    LEAVE_LATE,
    lost_work_refusal,
    request_drill,
    worker_drill_refusal,
)
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.observation import LaunchStatus, Observation, Placement
from holdfast.domain.jobs.reconcile import decide
from support.events import (
    SPOT,
    at,
    drill_requested,
    finished,
    launched,
    lost,
    node_change,
    node_lost,
    node_replaced,
    placement,
    ready,
    saved,
    submitted,
    training,
)

NOW = at(60)
TRAINS = (submitted(), launched(), replace(ready(10, micros=2 * SPOT), nodes=2), training(12))


def job(*events: Event) -> Job:
    return fold("job-1", (*TRAINS, *events))


def losses(events: tuple[Event, ...], *placements: Placement) -> list[tuple[float, bool]]:
    """The recorded losses: their times in seconds, and whether each is marked as a drill."""
    status = LaunchStatus.WAITING if placements[-1].lost_at else LaunchStatus.UP
    count = len(placements)
    seen = Observation(status=status, since=at(50), placements=count, recent_placements=placements)
    record = decide(job(*events), seen, NOW).record
    found = [event for event in record if isinstance(event, CapacityLost | NodeLost)]
    return [((event.at - at(0)).total_seconds(), event.drill) for event in found]


def test_request_records_attempt_node_notice_and_user() -> None:
    [event] = request_drill(job(), at(20), node=1, notice_s=30.0, by="ada")

    assert event == drill_requested(20, node=1, notice_s=30.0, by="ada")


def test_request_alone_changes_neither_state_nor_counters() -> None:
    before, after = job(), job(drill_requested(20))

    assert (after.state, after.detail, after.preemptions, after.drills) == (
        *(before.state, before.detail, 0, 0),
    )


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.NODE_FAILED])
def test_loss_after_a_request_is_a_drill(cause: Cause) -> None:
    assert losses((drill_requested(20),), placement(10, 30, cause=cause)) == [(30, True)]


def test_loss_without_a_request_is_no_drill() -> None:
    assert losses((), placement(10, 30)) == [(30, False)]


def test_loss_before_the_request_is_no_drill() -> None:
    """The market took the nodes first; the request arrived before the loss was recorded."""
    events = (drill_requested(31),)

    assert losses(events, placement(10, 30), placement(40, 45)) == [(30, False), (45, False)]


def test_request_explains_no_loss_of_the_next_attempt() -> None:
    events = (drill_requested(20),)

    assert losses(events, placement(10, 30), placement(40, 45)) == [(30, True), (45, False)]


def test_request_during_an_unrecorded_attempt_marks_its_loss() -> None:
    """The nodes were replaced before the request, and the service did not know yet."""
    events = (drill_requested(42),)

    assert losses(events, placement(10, 30), placement(40, 45)) == [(30, False), (45, True)]


def test_failure_of_the_program_during_a_drill_is_no_drill() -> None:
    gone = placement(10, 30, cause=Cause.USER_ERROR)

    assert losses((drill_requested(20),), gone) == [(30, False)]


def test_only_the_requested_node_is_a_drill() -> None:
    changes = (
        node_change(22, Cause.PREEMPTED, node=2),
        node_change(24, Cause.PREEMPTED, node=1),
        node_change(26, node=1),
        node_change(28, Cause.PREEMPTED, node=1),
    )
    nodes = replace(placement(10), node_changes=changes)

    found = losses((drill_requested(20, node=1),), nodes)

    assert found == [(22, False), (24, True), (28, False)]


def test_request_for_a_node_is_matched_before_one_for_any() -> None:
    after = job(drill_requested(20), drill_requested(21, node=1), node_lost(22, node=1, drill=True))

    assert [drill.node for drill in after.pending_drills] == [None]


def test_attempt_that_ends_with_a_drilled_node_is_one_drill() -> None:
    events = (drill_requested(20, node=1), node_lost(22, node=1, drill=True))
    gone = replace(placement(10, 40), node_changes=(node_change(22, Cause.PREEMPTED, node=1),))

    after = job(*events, lost(40, drill=True))

    assert losses(events, gone) == [(40, True)]
    assert (after.preemptions, after.drills, after.drilled_nodes) == (1, 1, ())


def test_attempt_that_ends_with_a_preempted_node_is_no_drill() -> None:
    events = (drill_requested(20, node=0), node_lost(22, node=1))
    gone = replace(placement(10, 40), node_changes=(node_change(22, Cause.PREEMPTED, node=1),))

    assert losses(events, gone) == [(40, False)]


def test_drills_are_counted_among_the_preemptions() -> None:
    drilled = (node_lost(22, drill=True), node_replaced(24))

    after = job(drill_requested(20), *drilled, lost(30), ready(40, attempt=2))

    assert (after.preemptions, after.drills) == (2, 1)


def test_pending_drill_ends_with_the_job() -> None:
    assert job(drill_requested(20), finished(30)).pending_drills == ()


def refusal(*events: Event, step: int, notice_s: float | None = None) -> str | None:
    return lost_work_refusal((*TRAINS, *events), step, notice_s=notice_s, has_store=True)


def test_drill_without_notice_names_the_steps_it_loses() -> None:
    assert refusal(saved(20, step=300), step=312) == (
        "without notice it would lose 12 steps since the checkpoint at step 300; give it notice, such as "
        "--notice 30s, or accept the loss with --force"
    )


def test_drill_without_a_checkpoint_loses_the_run_from_its_start() -> None:
    reason = refusal(step=7)

    assert reason is not None
    assert "7 steps since the start" in reason


def test_drill_right_after_a_checkpoint_loses_nothing() -> None:
    assert refusal(saved(20, step=300), step=300) is None
    assert refusal(step=0) is None


def test_steps_before_a_restored_checkpoint_are_safe() -> None:
    """The checkpoint of another job, from which this one started, still exists."""
    reason = refusal(training(13, step=100), step=101)

    assert reason is not None
    assert "1 step since the checkpoint at step 100" in reason


def test_steps_from_a_snapshot_in_memory_are_not_safe() -> None:
    held = replace(training(40, step=25), held_at=at(30))

    assert refusal(training(10), saved(20, step=20), held, step=25) == (
        "without notice it would lose 5 steps since the checkpoint at step 20; "
        "give it notice, such as --notice 30s, or accept the loss with --force"
    )


def test_notice_must_be_long_enough_for_the_newest_checkpoint() -> None:
    slow = replace(saved(50, step=300), snapshot_at=at(36))

    assert refusal(slow, step=312, notice_s=14) is None
    assert refusal(slow, step=312, notice_s=13) == (
        "its newest checkpoint took 14.0 s to save, so that a notice of 13 s may lose 12 steps since the "
        "checkpoint at step 300; give it more notice, or accept the loss with --force"
    )
    assert refusal(slow, saved(55, step=310), step=312, notice_s=13) is None


def test_notice_suffices_before_the_first_checkpoint() -> None:
    assert refusal(step=7, notice_s=5) is None


@pytest.mark.parametrize("notice_s", [None, 120])
def test_job_without_a_store_would_start_again(notice_s: float | None) -> None:
    reason = lost_work_refusal(TRAINS, 12, notice_s=notice_s, has_store=False)

    assert reason is not None
    assert reason.startswith(
        "it has no checkpoint store, so it would start again from the beginning and lose 12 steps"
    )


def test_loss_long_after_a_request_to_the_worker_is_no_drill() -> None:
    """The request did not arrive, and the market took the nodes."""
    asked = replace(drill_requested(20, notice_s=30), through_worker=True)
    in_time, late = 50 + LEAVE_LATE.total_seconds(), 51 + LEAVE_LATE.total_seconds()

    assert losses((asked,), placement(10, in_time)) == [(in_time, True)]
    assert losses((asked,), placement(10, late)) == [(late, False)]


def test_worker_without_reports_cannot_be_asked_to_leave() -> None:
    starting = fold("job-1", TRAINS[:-1])

    assert worker_drill_refusal(job(), node=None, notice_s=30) is None
    assert "has not reported training" in (
        worker_drill_refusal(starting, node=None, notice_s=30) or ""
    )
