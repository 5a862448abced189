"""A job is paused for one with a higher priority, and waits in the queue again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.diagnostics.timeline import timeline
from holdfast.domain.events import (
    Admitted,
    CancelRequested,
    CapacityType,
    Cause,
    Event,
    LaunchPlacement,
    Outcome,
    PausedForPriority,
    PauseRequested,
    PriorityChanged,
    Requeued,
)
from holdfast.domain.events.values import Demand
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.commands import pause, pause_refusal
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.observation import LaunchResult, LaunchStatus, Observation
from holdfast.domain.jobs.pauses import may_be_paused
from holdfast.domain.jobs.reconcile import Effect, ReconcileContext, decide
from holdfast.domain.queue.priority_pauses import PriorityPause
from support.events import at, launched, lost, paused, ready, submitted, training

TRAINS = (submitted(), launched(1), ready(2), training(3))
PAUSING = (*TRAINS, PausedForPriority(at=at(9), for_job="urgent", priority=5))
CHOSEN = PriorityPause(job_id="job-1", for_job="urgent", priority=5)
STORE = {"checkpoint": {"store": "s3://bucket/a"}}


def job(*events: Event) -> Job:
    return fold("job-1", events)


def spec_of(infra: str = "aws", **values: object) -> JobSpec:
    resources = {"infra": infra, "accelerators": "A100:8"} | values
    return JobSpec(name="a", run="x", resources=resources, holdfast=STORE)  # type: ignore[arg-type]


def test_chosen_job_is_asked_to_save_and_leave() -> None:
    seen = Observation(status=LaunchStatus.UP, placements=1, since=at(2))

    plan = decide(job(*TRAINS), seen, at(9), ReconcileContext(priority_pause=CHOSEN))

    assert plan.record == PAUSING[-1:]
    assert plan.effect is Effect.CANCEL


def test_paused_job_enters_the_queue_again_by_itself() -> None:
    ended = LaunchResult(at=at(12), outcome=Outcome.CANCELLED, detail="")
    seen = Observation(status=LaunchStatus.ENDED, placements=1, since=at(2), result=ended)

    plan = decide(job(*PAUSING), seen, at(12))
    after = job(*PAUSING, *plan.record)

    assert [type(event).__name__ for event in plan.record] == ["CapacityLost", "Paused", "Requeued"]
    assert (after.state, after.paused_for, after.priority_pauses) == (State.QUEUED, "", 1)
    assert after.queued_at == at(12)
    assert (after.launch - after.launches_before_resume, after.preemptions) == (0, 0)
    assert "paused for job urgent, which has priority 5" in after.detail


def test_launch_that_is_gone_is_requeued_as_well() -> None:
    seen = Observation(status=LaunchStatus.FORGOTTEN, placements=0, since=at(12))

    plan = decide(job(*PAUSING), seen, at(12))

    assert [type(event).__name__ for event in plan.record][-2:] == ["Paused", "Requeued"]


def test_pause_of_a_user_in_between_lasts() -> None:
    between = job(*PAUSING)

    [request] = pause(between, at(10), "by hand", "ada")
    after = job(*PAUSING, request, lost(11, cause=Cause.PAUSED), paused(11))

    assert isinstance(request, PauseRequested)
    assert pause_refusal(between) is None
    assert (after.state, after.paused_for) == (State.PAUSED, "")
    assert pause(job(*PAUSING, request), at(11), "again") == ()


@pytest.mark.parametrize("events", [TRAINS[:1], PAUSING, (*TRAINS, CancelRequested(at=at(9)))])
def test_job_that_does_not_run_is_not_paused(events: tuple[Event, ...]) -> None:
    context = ReconcileContext(priority_pause=CHOSEN)
    up = Observation(status=LaunchStatus.UP, placements=1, since=at(2))
    seen = up if job(*events).is_launched else None

    plan = decide(job(*events), seen, at(10), context)

    assert not any(isinstance(event, PausedForPriority) for event in plan.record)


def test_only_saving_spot_jobs_without_a_deadline_are_paused() -> None:
    trains = job(*TRAINS)
    on_demand = LaunchPlacement(capacity=CapacityType.ON_DEMAND, places=("aws",))

    assert may_be_paused(trains, spec_of())
    assert may_be_paused(trains, spec_of("slurm", use_spot=True))
    assert not may_be_paused(trains, spec_of("slurm"))
    assert not may_be_paused(trains, spec_of(use_spot=False))
    assert not may_be_paused(replace(trains, placement=on_demand), spec_of())
    assert not may_be_paused(replace(trains, limits=Limits(deadline="48h")), spec_of())
    assert not may_be_paused(trains, JobSpec(name="a", run="x", resources={"infra": "aws"}))
    assert not may_be_paused(job(*PAUSING), spec_of())
    failing = replace(trains.saving, trouble="3 checkpoints failed")
    assert not may_be_paused(replace(trains, saving=failing), spec_of())


def test_story_tells_of_the_queue() -> None:
    demand = Demand(nodes=2, gpus=16)
    events: tuple[Event, ...] = (
        submitted(),
        PriorityChanged(at=at(1), priority=-1, by="ada"),
        Admitted(at=at(300), demand=demand, waited_s=300),
        launched(300),
        ready(310),
        training(320),
        PausedForPriority(at=at(400), for_job="urgent", priority=5),
        lost(410, cause=Cause.PAUSED),
        paused(410),
        Requeued(at=at(410), for_job="urgent"),
    )

    sentences = [s.text for s in timeline(job(*events), events, compute_bill(events, {}, at(500)))]

    assert "Priority changed by ada; it is now -1." in sentences
    assert (
        "Admitted after 5 min in the queue: the quotas have room for 2 nodes and 16 GPUs."
        in sentences
    )
    assert (
        "Pausing: paused for job urgent, which has priority 5. Asked the worker to save."
        in sentences
    )
    assert "Waits in the queue again, and starts when there is room." in sentences
