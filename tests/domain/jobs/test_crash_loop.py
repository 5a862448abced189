"""Which crashes are identical, and how many have occurred in a row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.events import Cause, Event, Guard, LeftReason
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.crash_loop import normalised, restart_pause_s
from holdfast.domain.jobs.guards import trip
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from support.events import (
    at,
    launched,
    left,
    lost,
    ready,
    replaced,
    restarted,
    saved,
    submitted,
    training,
)

OOM = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB (GPU 3; 79.15 GiB total)"


def failed_attempts(
    *messages: str | None, cause: Cause = Cause.USER_ERROR, code: int = 1
) -> list[Event]:
    """A number of lost attempts with the exit report of each worker; None: no report."""
    events: list[Event] = [submitted(), launched()]
    for attempt, item in enumerate(messages, 1):
        events.append(ready(attempt * 10, attempt=attempt))
        if item is not None:
            events.append(crash(item, attempt, code=code))
        events.append(lost(attempt * 10 + 2, attempt=attempt, cause=cause))
    return events


def crash(message: str, attempt: int, *, code: int = 1, step: int = 7) -> Event:
    result = left(attempt * 10 + 1, attempt=attempt, step=step, reason=LeftReason.FAILED, exit_code=code)  # fmt: skip
    return replace(result, detail=message)


def job(events: list[Event]) -> Job:
    return fold("job-1", events)


def guard(one: Job) -> Guard | None:
    tripped = trip(one, Limits(max_failures=100), at(900))
    return tripped.guard if tripped else None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (OOM, OOM.replace("2.50", "2.48").replace("GPU 3", "GPU 0")),
        ("rank 3: no file /tmp/a1/x.pt", "rank 11: no file /tmp/b2/y.pt"),
        ("<object at 0x7f00aa> is gone", "<object at 0x7fffbb> is gone"),
        ("2026-03-01T12:00:01Z bad batch", "2026-03-02T07:10:59Z bad batch"),
        ("run 4f1d2c3b-aaaa died", "run 99887766-bbbb died"),
    ],
)
def test_variable_parts_do_not_distinguish_crashes(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'loss'", "KeyError: 'lr'"),
        ("RuntimeError: shape mismatch", "ValueError: shape mismatch"),
    ],
)
def test_different_error_is_a_different_crash(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_three_identical_crashes_fail_with_their_message() -> None:
    messages = [OOM.replace("2.50", f"2.{n}") for n in range(3)]

    tripped = trip(job(failed_attempts(*messages)), Limits(max_failures=100), at(900))

    assert guard(job(failed_attempts(*messages[:2]))) is None
    assert tripped is not None
    assert (tripped.guard, tripped.guard.pauses) == (Guard.SAME_CRASH, False)
    assert tripped.detail == (
        "the last 3 crashes were identical, without a checkpoint in between: "
        f"exit code 1: {OOM.replace('2.50', '2.2')}"
    )


def test_restarts_of_ranks_count_as_crashes_until_a_checkpoint() -> None:
    begun = [submitted(), launched(), ready(), training(1)]
    restarts = [restarted(n, step=n, detail=f"rank {n} was killed") for n in range(2, 5)]

    assert guard(job([*begun, *restarts[:2]])) is None
    assert guard(job([*begun, *restarts])) is Guard.SAME_CRASH
    assert guard(job([*begun, *restarts[:2], saved(3, step=9), restarts[2]])) is None


def test_restart_after_the_loss_of_a_node_is_no_crash() -> None:
    begun = [submitted(), launched(), ready(), training(1)]
    lost_node = replace(restarted(2, step=5, detail="node 2 was lost"), node_lost=True)

    result = job([*begun, lost_node])

    assert (result.state, result.step) == (State.STARTING, 5)
    assert (result.failures, result.failure, result.crashes) == (0, "", job(begun).crashes)


def test_restarts_of_ranks_count_towards_max_failures() -> None:
    events = [submitted(), launched(), ready(), training(1), restarted(2), restarted(3)]

    tripped = trip(job(events), Limits(max_failures=2), at(900))

    assert tripped is not None
    assert tripped.guard is Guard.MAX_FAILURES


def test_replaced_ranks_count_as_no_crash_and_no_failure() -> None:
    begun = [submitted(), launched(), ready(), training(1)]
    calm = [replaced(n, step=n) for n in range(2, 12)]

    result = job([*begun, *calm])

    assert (result.failures, result.failure, result.crashes) == (0, "", job(begun).crashes)
    assert guard(result) is None


def test_replaced_ranks_do_not_reset_the_count_of_crashes() -> None:
    begun = [submitted(), launched(), ready(), training(1)]
    restarts = [restarted(n, step=n, detail=f"rank {n} was killed") for n in range(2, 5)]

    result = job([*begun, *restarts[:2], replaced(3, step=9), restarts[2]])

    assert guard(result) is Guard.SAME_CRASH


def test_different_crash_or_exit_code_resets_the_count() -> None:
    assert guard(job(failed_attempts("a", "a", "b", "a", "a"))) is None
    assert guard(job(failed_attempts("a", "a", "b", "b", "b"))) is Guard.SAME_CRASH
    other = [*failed_attempts("a", "a"), ready(30, attempt=3), crash("a", 3, code=9)]
    assert guard(job([*other, lost(32, attempt=3, cause=Cause.USER_ERROR)])) is None


def test_count_continues_after_a_reset() -> None:
    assert job(failed_attempts("a", "a", "b", "b")).crashes.count == 2


def test_newer_checkpoint_resets_the_count() -> None:
    twice = [*failed_attempts("a", "a"), ready(30, attempt=3)]
    third = [crash("a", 3), lost(32, attempt=3, cause=Cause.USER_ERROR)]

    assert guard(job([*twice, *third])) is Guard.SAME_CRASH
    assert guard(job([*twice, saved(30, attempt=3, step=5), *third])) is None


def test_a_checkpoint_of_the_same_step_is_no_progress() -> None:
    start, first, *rest = failed_attempts("a", "a", "a")[1:]
    again = saved(25, attempt=2, step=5)

    one = job([submitted(), start, first, saved(10, step=5), *rest[:3], again, *rest[3:]])

    assert guard(one) is Guard.SAME_CRASH


def test_loss_of_peers_to_preemption_is_no_crash() -> None:
    message = "node 1 is gone: nothing is heard of it any more"

    assert guard(job(failed_attempts(message, message, message, cause=Cause.PREEMPTED))) is None
    assert guard(job(failed_attempts(message, message, message, cause=Cause.NODE_FAILED))) is None


def test_crashes_without_a_message_are_not_identical() -> None:
    assert guard(job(failed_attempts(None, None, None, None))) is None


def test_exit_report_may_follow_the_capacity_loss() -> None:
    late = [*failed_attempts("a", "a", None), crash("a", 3)]

    assert guard(job(late)) is Guard.SAME_CRASH


def test_launch_already_restarting_is_stopped() -> None:
    again = [*failed_attempts("a", "a", "a"), ready(40, attempt=4)]

    assert guard(job(again)) is Guard.SAME_CRASH
    assert guard(job([*failed_attempts("a", "a"), ready(30, attempt=3), crash("a", 3)])) is None


def test_restart_pause_doubles_up_to_half_an_hour() -> None:
    assert [restart_pause_s(30, failures) for failures in (1, 2, 3, 7, 8, 100)] == [
        30,
        60,
        120,
        1800,
        1800,
        1800,
    ]
    assert restart_pause_s(0, 5) == 0
