"""When users are told that a planned job may miss its deadline, or that nobody has nodes for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from holdfast.domain.events import (
    CapacityDenied,
    CapacityType,
    LaunchPlacement,
    LaunchRequested,
    MarketState,
    PlanForecast,
    Planned,
    PlanReason,
)
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.moves import denied_everywhere
from holdfast.domain.jobs.observation import Denial, LaunchStatus, Observation
from holdfast.domain.jobs.plan_status import PlanStatus, plan_after, with_warning
from holdfast.domain.jobs.reconcile import ReconcileContext, decide
from support.events import DAWN, submitted

FORECAST = PlanForecast(
    runs=128, cost_p10_usd=1.0, cost_p50_usd=1.0, cost_p90_usd=1.0, end_p10=DAWN, end_p50=DAWN, end_p90=DAWN, late=0.0,
    over_budget=0.0, preemptions=0.0, lost_work_s=0.0,
)  # fmt: skip
PLANNED = Planned(
    at=DAWN, capacity=CapacityType.SPOT, places=("aws",), reason=PlanReason.SPOT_STANDS, remaining_s=60.0, slack_s=60.0,
    net_at=DAWN, changeover_s=10.0, policy="holdfast", policy_version=1,
    market=MarketState(at=DAWN, places=(), tick_s=60.0, changeover_s=10.0),
)  # fmt: skip
ON_DEMAND, SPOT = CapacityType.ON_DEMAND, CapacityType.SPOT


def test_users_are_warned_once_of_a_doubtful_deadline() -> None:
    status: PlanStatus | None = None
    warned = []
    for late in (0.02, 0.12, 0.5, 0.08, None, 0.2, 0.04, 0.1):
        forecast = None if late is None else replace(FORECAST, late=late)
        planned = with_warning(status, replace(PLANNED, forecast=forecast))
        warned.append(planned.warns)
        status = plan_after(status, planned)

    assert warned == [False, True, False, False, False, False, False, True]


def job_asking_for(capacity: CapacityType, *places: str) -> Job:
    placement = LaunchPlacement(capacity=capacity, places=places)
    return fold("job-1", [submitted(), LaunchRequested(at=DAWN, launch=1, placement=placement)])


@pytest.mark.parametrize(
    ("capacity", "places", "zones", "number"),
    [
        (ON_DEMAND, ("aws/us-east-1/us-east-1a", "gcp"), ("us-east-1/us-east-1a", "us-central1/us-central1-a"), 1),
        (ON_DEMAND, ("aws/us-east-1/us-east-1a",), ("us-east-1/us-east-1b", "aws/us-east-1/us-east-1a"), 1),
        (ON_DEMAND, ("aws/us-east-1#2",), ("us-east-1",), 0),
        (ON_DEMAND, ("any",), ("eu-west-1",), 0),
        (ON_DEMAND, ("local/local-a", "local/local-b"), ("local-a", "local-a"), None),
        (SPOT, ("aws",), ("us-east-1",), None),
    ],
)  # fmt: skip
def test_last_on_demand_place_is_found(
    capacity: CapacityType, places: tuple[str, ...], zones: tuple[str, ...], number: int | None
) -> None:
    assert denied_everywhere(job_asking_for(capacity, *places), zones) == number


def test_only_the_last_denial_of_a_launch_says_everywhere() -> None:
    job = job_asking_for(ON_DEMAND, "local/local-a", "local/local-b")
    zones = ("local-a", "local-b", "local-a")
    recorded = []
    for seen in range(1, 4):
        denials = tuple(
            Denial(at=DAWN + timedelta(seconds=n), zone=zone) for n, zone in enumerate(zones[:seen])
        )
        waiting = Observation(status=LaunchStatus.WAITING, since=DAWN, denials=denials)
        events = decide(job, waiting, DAWN, ReconcileContext()).record
        recorded += [event for event in events if isinstance(event, CapacityDenied)]
        job = fold("job-1", [*[submitted(), LaunchRequested(at=DAWN, launch=1, placement=job.placement)], *recorded])  # fmt: skip

    assert [event.is_everywhere for event in recorded] == [False, True, False]


def test_job_without_plan_says_nothing() -> None:
    job = fold("job-1", [submitted(), LaunchRequested(at=DAWN, launch=1)])

    assert denied_everywhere(job, ["a", "b"]) is None
