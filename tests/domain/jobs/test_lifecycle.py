"""The state of a job follows from its events, by the rows of one table alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from holdfast.domain.events import (
    CancelRequested,
    Cause,
    CleanedUp,
    CleanupFailed,
    Event,
    Guard,
    LeftReason,
    Moved,
    MoveRequested,
    Outcome,
    RanksReplaced,
)
from holdfast.domain.jobs.job import IN_TRAINING, Job, State
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.errors import IllegalTransition
from support.events import (
    at,
    denied,
    finished,
    launched,
    left,
    lost,
    node_lost,
    node_replaced,
    noticed,
    paused,
    pausing,
    ready,
    replaced,
    restarted,
    restoring,
    resumed,
    saved,
    submitted,
    training,
    tripped,
)

TABLE = """
                LaunchRequested CapacityDenied NodesReady CapacityLost PauseRequested Paused ResumeRequested CancelRequested GuardTripped Finished NodeLost NodeReplaced MoveRequested Moved
queued          provisioning    -              -          -            pausing        -      -               stopping        stopping     ended    -        -            -             -
provisioning    -               provisioning   starting   recovering   pausing        -      -               stopping        stopping     ended    -        -            moving        -
starting        -               starting       -          recovering   pausing        -      -               stopping        stopping     ended    starting starting     moving        -
training        -               training       -          recovering   pausing        -      -               stopping        stopping     ended    training training     moving        -
degraded        -               degraded       -          recovering   pausing        -      -               stopping        stopping     ended    degraded degraded     moving        -
recovering      provisioning    recovering     starting   -            pausing        -      -               stopping        stopping     ended    -        -            moving        -
moving          -               moving         moving     moving       pausing        -      -               stopping        stopping     ended    moving   moving       -             queued
pausing         -               pausing        pausing    pausing      pausing        paused -               stopping        -            ended    pausing  pausing      -             -
paused          -               -              -          -            -              -      queued          stopping        -            -        -        -            -             -
stopping        -               stopping       stopping   stopping     -              -      -               -               -            ended    stopping stopping     -             -
ended           -               -              -          -            -              -      -               -               -            -        -        -            -             -
"""
CANCEL = CancelRequested(at=at(9))
MOVE = MoveRequested(at=at(9), reason="moving to on-demand nodes")
EVENTS: dict[str, Event] = {
    "LaunchRequested": launched(9, launch=2),
    "CapacityDenied": denied(9),
    "NodesReady": ready(9, attempt=2),
    "CapacityLost": lost(9),
    "PauseRequested": pausing(9),
    "Paused": paused(9),
    "ResumeRequested": resumed(9),
    "CancelRequested": CANCEL,
    "GuardTripped": tripped(9, Guard.MAX_FAILURES),
    "Finished": finished(9),
    "NodeLost": node_lost(9),
    "NodeReplaced": node_replaced(9),
    "MoveRequested": MOVE,
    "Moved": Moved(at=at(9), launch=1),
}
EVENTS_TO: dict[State, tuple[Event, ...]] = {
    State.QUEUED: (submitted(),),
    State.PROVISIONING: (submitted(), launched()),
    State.STARTING: (submitted(), launched(), ready()),
    State.TRAINING: (submitted(), launched(), ready(), training()),
    State.DEGRADED: (submitted(), launched(), ready(nodes=2), training(), replaced(hosted=(1,))),
    State.RECOVERING: (submitted(), launched(), ready(), training(), lost()),
    State.MOVING: (submitted(), launched(), ready(), training(), MOVE),
    State.PAUSING: (submitted(), launched(), ready(), training(), pausing()),
    State.PAUSED: (submitted(), launched(), ready(), training(), pausing(), lost(), paused()),
    State.STOPPING: (submitted(), launched(), ready(), training(), CANCEL),
    State.ENDED: (submitted(), launched(), ready(), training(), finished()),
}
WORKER_EVENTS: list[Event] = [
    noticed(9, step=7),
    restoring(9),
    saved(9, step=7),
    replaced(9, step=7),
    left(9, step=7),
]


def rows() -> list[tuple[State, str, str]]:
    """The table by state, event and the state after it."""
    head, *body = TABLE.strip("\n").splitlines()
    kinds = head.split()
    return [
        (State(state), kind, after)
        for state, *cells in map(str.split, body)
        for kind, after in zip(kinds, cells, strict=True)
    ]


def job(*events: Event) -> Job:
    return fold("job-1", events)


def in_state(state: State) -> Job:
    return job(*EVENTS_TO[state])


@pytest.mark.parametrize("state", State)
def test_every_state_can_be_reached(state: State) -> None:
    assert in_state(state).state is state


@pytest.mark.parametrize(("state", "kind", "after"), [row for row in rows() if row[2] != "-"])
def test_each_table_row_moves_the_job(state: State, kind: str, after: str) -> None:
    before = in_state(state)

    moved = advance(before, EVENTS[kind])

    assert moved.state == after
    assert moved.seq == before.seq + 1


@pytest.mark.parametrize(("state", "kind"), [row[:2] for row in rows() if row[2] == "-"])
def test_a_pair_without_a_row_is_refused(state: State, kind: str) -> None:
    before = in_state(state)

    with pytest.raises(IllegalTransition, match=f"{before.status}: {kind} cannot follow"):
        advance(before, EVENTS[kind])


@pytest.mark.parametrize("state", State)
def test_a_job_is_submitted_once(state: State) -> None:
    with pytest.raises(IllegalTransition, match="submitted already"):
        advance(in_state(state), submitted())


@pytest.mark.parametrize("events", [(), (launched(), ready())])
def test_a_log_begins_with_a_submission(events: tuple[Event, ...]) -> None:
    with pytest.raises(IllegalTransition):
        job(*events)


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (state, event)
        for state, event in itertools.product(State, WORKER_EVENTS)
        if not (state is State.DEGRADED and isinstance(event, RanksReplaced))
    ],
)
def test_worker_reports_other_than_training_keep_the_state(state: State, event: Event) -> None:
    before = in_state(state)

    recorded = advance(before, event)

    assert recorded.state is before.state
    assert recorded.seq == before.seq + 1


@pytest.mark.parametrize("state", [s for s in State if s is not State.STARTING])
def test_late_training_start_moves_only_a_starting_job(state: State) -> None:
    before = in_state(state)

    assert advance(before, training(9, attempt=1)).state is before.state


def test_restarted_ranks_train_again_in_the_same_attempt() -> None:
    before = job(submitted(), launched(), ready(), training(5), saved(6, step=10))

    ended = advance(before, restarted(9, step=14, detail="rank 1 was killed by signal 9"))
    again = advance(ended, training(11, step=10))

    assert (ended.state, ended.attempt, ended.step) == (State.STARTING, 1, 14)
    assert ended.detail == "the ranks start again: rank 1 was killed by signal 9"
    assert (ended.failures, ended.failure) == (1, "rank 1 was killed by signal 9")
    assert (again.state, again.attempt, again.step) == (State.TRAINING, 1, 10)
    assert (again.resumes, again.preemptions, again.detail) == (0, 0, "")


def test_restart_after_a_loss_of_nodes_is_no_failure() -> None:
    before = job(submitted(), launched(), ready(), training(5), saved(6, step=10))

    loss = restarted(9, step=14, detail="node 2 was lost")
    losses = [replace(loss, at=at(n), node_lost=True) for n in (9, 12, 15)]
    ended = job(submitted(), launched(), ready(), training(5), saved(6, step=10), *losses)

    assert (ended.failures, ended.failure, ended.crashes) == (
        before.failures,
        before.failure,
        before.crashes,
    )
    assert (ended.state, ended.step) == (State.STARTING, 14)


@pytest.mark.parametrize("state", [s for s in State if s not in IN_TRAINING])
def test_late_restart_of_ranks_moves_only_a_training_job(state: State) -> None:
    before = in_state(state)

    assert advance(before, restarted(9)).state is before.state


def test_replaced_ranks_advance_only_the_step() -> None:
    before = job(submitted(), launched(), ready(), training(5), saved(6, step=10))

    after = advance(before, replaced(9, step=14, paused_ms=800))

    advanced = {"step": 14, "furthest_step": 14, "advanced_attempt": 1}
    assert after == replace(before, seq=before.seq + 1, updated_at=at(9), **advanced)


def test_early_training_report_applies_once_nodes_are_ready() -> None:
    early = job(submitted(), launched(), training(5, attempt=1, step=0))

    placed = advance(early, ready(3, attempt=1))

    assert early.state is State.PROVISIONING
    assert placed.state is State.TRAINING


def test_early_training_report_applies_only_to_its_attempt() -> None:
    early = job(submitted(), launched(), training(5, attempt=2))

    first = advance(early, ready(3, attempt=1))
    second = job(submitted(), launched(), training(5, attempt=2), ready(3), lost(4), ready(5, attempt=2))  # fmt: skip

    assert first.state is State.STARTING
    assert second.state is State.TRAINING


def test_early_start_does_not_revive_a_stopping_job() -> None:
    stopping = job(submitted(), launched(), training(5), CANCEL)

    assert advance(stopping, ready(3)).state is State.STOPPING


def test_an_old_attempt_only_annotates() -> None:
    current = job(submitted(), launched(), ready(), training(1), lost(2), ready(3, attempt=2))

    for late in (
        training(9, step=500),
        noticed(9, step=500),
        replaced(9, step=500),
        left(9, step=500),
    ):
        result = advance(current, late)

        assert (result.state, result.step, result.detail) == (State.STARTING, 0, current.detail)


def test_a_late_checkpoint_of_an_old_attempt_is_still_safe() -> None:
    current = job(submitted(), launched(), ready(), training(1), lost(2), ready(3, attempt=2))

    result = advance(current, saved(1, step=400, durable_s=4))

    assert result.last_checkpoint_step == 400
    assert result.step == 0


def test_the_newest_safe_step_never_goes_back() -> None:
    one = job(submitted(), launched(), ready(), training(), saved(1, step=200), saved(2, step=100))

    assert one.last_checkpoint_step == 200


def test_repeated_training_report_counts_one_resume() -> None:
    resumed = job(
        submitted(), launched(), ready(), training(1), lost(2), ready(3, attempt=2),
        training(4, attempt=2, step=50), training(5, attempt=2, step=50),
    )  # fmt: skip

    assert (resumed.resumes, resumed.step, resumed.started_attempt) == (1, 50, 2)


def test_preemptions_and_failures_are_counted_separately() -> None:
    one = job(
        submitted(), launched(),
        ready(1, attempt=1), lost(2, attempt=1, cause=Cause.PREEMPTED),
        ready(3, attempt=2), lost(4, attempt=2, cause=Cause.NODE_FAILED),
        ready(5, attempt=3), lost(6, attempt=3, cause=Cause.USER_ERROR),
        ready(7, attempt=4), lost(8, attempt=4, cause=Cause.PREEMPTED),
    )  # fmt: skip

    assert (one.preemptions, one.failures, one.attempt) == (3, 1, 4)


def test_a_program_that_failed_at_last_counts_as_a_failure() -> None:
    ran = job(submitted(), launched(), ready(), finished(2, Outcome.FAILED, exit_code=1))
    refused = job(submitted(), launched(), finished(2, Outcome.FAILED, exit_code=None))

    assert (ran.failures, ran.exit_code, ran.status) == (1, 1, "failed")
    assert (refused.failures, refused.exit_code) == (0, None)


def test_a_new_launch_counts_its_own_placements_and_denials() -> None:
    one = job(
        submitted(), launched(), denied(), ready(1), lost(2, cause=Cause.LAUNCHER_FORGOT),
        launched(3, launch=2), denied(4), denied(5), ready(6, attempt=2),
    )  # fmt: skip

    assert (one.launch_key, one.placements, one.attempt, one.denials) == ("job-1-2", 1, 2, 2)


def test_late_event_does_not_move_job_time_back() -> None:
    one = job(submitted(0), launched(10), ready(5))

    assert one.updated_at == at(10)


def test_a_cancel_may_lose_the_race() -> None:
    stopping = job(submitted(), launched(), ready(), training(), CANCEL)

    ended = advance(stopping, finished(10, Outcome.SUCCEEDED))

    assert (ended.state, ended.outcome) == (State.ENDED, Outcome.SUCCEEDED)


def test_worker_exit_after_the_end_has_no_effect() -> None:
    ended = in_state(State.ENDED)

    result = advance(ended, left(99, step=7))

    assert (result.status, result.seq, result.updated_at) == (ended.status, ended.seq + 1, at(99))


def test_cancel_reason_stays_visible_until_job_ends() -> None:
    cancelled = CancelRequested(at=at(3), reason="too dear")

    job = fold("j", [submitted(), launched(1), cancelled, denied(4), ready(5), lost(6)])

    assert (job.state, job.detail) == (State.STOPPING, "too dear")


def test_guard_detail_stays_visible_until_pause_completes() -> None:
    stopping = job(submitted(), launched(), ready(1), tripped(3, detail="too dear"), lost(4))

    assert (stopping.state, stopping.detail, stopping.tripped) == (
        State.PAUSING,
        "too dear",
        "too dear",
    )
    assert stopping.stop_asked_at == at(3)


@pytest.mark.parametrize("state", State)
def test_orphans_show_a_warning_and_keep_the_state(state: State) -> None:
    before = in_state(state)

    left_behind = advance(before, CleanupFailed(at=at(9), detail="cluster a"))
    two = advance(left_behind, CleanupFailed(at=at(9), detail="disk b"))
    one = advance(two, CleanedUp(at=at(10), detail="cluster a"))
    none = advance(one, CleanedUp(at=at(11), detail="disk b"))

    assert {item.status for item in (left_behind, two, one, none)} == {before.status}
    assert left_behind.warning == "nodes may still be billed: cluster a"
    assert two.warning == "nodes may still be billed: cluster a; disk b"
    assert one.warning == "nodes may still be billed: disk b"
    assert none.warning == ""


def test_a_notice_is_remembered_until_its_nodes_are_lost() -> None:
    warned = job(submitted(), launched(), ready(), training(1), noticed(2), noticed(2, attempt=2))

    assert warned.noticed == (1, 2)
    assert advance(warned, lost(3)).noticed == (2,)


def test_worker_exit_on_notice_marks_attempt_as_noticed() -> None:
    gone = job(submitted(), launched(), ready(), training(1), left(2, step=7))
    failed = job(
        submitted(), launched(), ready(), left(2, step=7, reason=LeftReason.FAILED, exit_code=1)
    )

    assert (gone.noticed, failed.noticed) == ((1,), ())


def test_own_stop_request_is_no_proof_of_a_reclaim() -> None:
    stopping = job(submitted(), launched(), ready(), training(1), CANCEL)

    assert advance(stopping, noticed(10)).noticed == ()
    assert advance(stopping, left(10, step=7)).noticed == ()


def test_late_notice_of_lost_nodes_has_no_effect() -> None:
    gone = job(submitted(), launched(), ready(), training(1), lost(2, cause=Cause.NODE_FAILED))

    assert advance(gone, noticed(3)).noticed == ()


def test_job_trains_until_worker_exit_or_capacity_loss() -> None:
    starts = job(submitted(), launched(), ready())
    trains = advance(starts, training(1))
    done = left(2, step=9, reason=LeftReason.FINISHED, exit_code=0)

    assert (starts.is_training, trains.is_training) == (False, True)
    assert not advance(trains, left(2, step=9)).is_training
    assert not advance(trains, lost(2)).is_training
    assert advance(trains, done).is_training, "its success will be observed next"


def test_furthest_attempt_is_independent_of_event_order() -> None:
    told_late = job(
        submitted(), launched(), training(1, attempt=1), saved(2, attempt=1, step=50),
        training(3, attempt=2, step=50), ready(1), lost(2), ready(3, attempt=2),
        saved(4, attempt=1, step=60),
    )  # fmt: skip

    assert (told_late.furthest_step, told_late.advanced_attempt) == (60, 1)
    assert advance(told_late, left(9, attempt=2, step=61)).advanced_attempt == 2
