"""The state of a job during a pause and after changed limits."""

from __future__ import annotations

import pytest
from holdfast.domain.events import CancelRequested, Cause, Event, Guard, MoveRequested
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.errors import IllegalTransition
from support.events import (
    at,
    finished,
    launched,
    lost,
    paused,
    pausing,
    ready,
    relimited,
    replaced,
    resumed,
    submitted,
    training,
    tripped,
)

CANCEL = CancelRequested(at=at(9))
TRAINS = (submitted(), launched(), ready(), training())
LIVES: list[tuple[Event, ...]] = [
    *(TRAINS[:n] for n in range(1, len(TRAINS) + 1)),
    (*TRAINS, replaced(hosted=(1,))),
    (*TRAINS, lost()),
    (*TRAINS, MoveRequested(at=at(4), reason="moving to on-demand nodes")),
    (*TRAINS, pausing()),
    (*TRAINS, pausing(), lost(cause=Cause.PAUSED), paused()),
    (*TRAINS, CANCEL),
]
"""Events that lead to each state except the last."""


def job(*events: Event) -> Job:
    return fold("job-1", events)


@pytest.mark.parametrize("guard", Guard)
def test_tripped_guard_pauses_job_unless_program_is_at_fault(guard: Guard) -> None:
    stopping = job(submitted(), launched(), ready(1), tripped(3, guard))

    at_fault = guard in {Guard.MAX_FAILURES, Guard.NO_RETRY, Guard.SAME_CRASH}
    assert stopping.state is (State.STOPPING if at_fault else State.PAUSING)
    assert stopping.guard is guard


def test_paused_job_has_no_nodes_and_no_cost() -> None:
    one = job(submitted(), launched(), ready(10), training(20), pausing(30), lost(40, cause=Cause.PAUSED), paused(41))  # fmt: skip

    assert (one.state, one.placed, one.is_launched) == (State.PAUSED, False, False)
    assert one.account.paid_micros_by(at(9999)) == 30_000
    assert one.preemptions == one.failures == 0
    assert one.detail == "a long weekend; resume it"


def test_resumed_job_is_queued_with_guard_state_cleared() -> None:
    before = (submitted(), launched(), ready(10), tripped(20), lost(30), paused(30))

    one = job(*before, resumed(5000))
    again = advance(one, launched(5001, launch=2))

    assert (one.state, one.stop_asked_at, one.tripped, one.guard) == (State.QUEUED, None, "", None)
    assert one.account.free_since == at(5000)
    assert not one.is_launched
    assert (again.launch_key, again.is_launched, again.state) == (
        "job-1-2",
        True,
        State.PROVISIONING,
    )


def test_cancel_while_pausing_does_not_extend_the_grace_time() -> None:
    one = job(submitted(), launched(), ready(1), tripped(3), CANCEL)

    assert (one.state, one.stop_asked_at, one.tripped) == (State.STOPPING, at(3), "")
    with pytest.raises(IllegalTransition):
        advance(one, paused(10))


@pytest.mark.parametrize("events", LIVES)
def test_limits_can_be_changed_in_every_state_and_move_none(events: tuple[Event, ...]) -> None:
    before = job(*events)

    one = advance(before, relimited(9, max_cost_usd=800))

    assert one.state is before.state
    assert before.limits is None
    assert one.limits is not None
    assert one.limits.max_cost_micros == 800_000_000


def test_every_live_state_is_tested() -> None:
    assert {job(*events).state for events in LIVES} == set(State) - {State.ENDED}


def test_changing_limits_of_ended_job_is_illegal() -> None:
    with pytest.raises(IllegalTransition):
        advance(job(*TRAINS, finished()), relimited(9, max_cost_usd=800))


def test_launch_keeps_the_limits_of_its_request() -> None:
    one = job(submitted(), relimited(1, max_failures=5), launched(2), relimited(3, max_failures=7))

    assert one.launch_limits is not None
    assert one.launch_limits.max_failures == 5
