"""A job with a plan that waited for spot nodes, lost them once, and moved to on-demand nodes."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from holdfast.domain.events import (
    CapacityType,
    Cause,
    Event,
    LaunchPlacement,
    LaunchRequested,
    MarketState,
    Moved,
    MoveRequested,
    PlaceState,
    PlanForecast,
    Planned,
    PlanReason,
    Submitted,
)
from support.events import ON_DEMAND, SPOT, at, lost, ready, saved, submitted, training

HOUR_S: Final = 3600.0
WORK_H: Final = 8.0
DEADLINE_H: Final = 14.0
CHANGEOVER_S: Final = 900.0
BUDGET_USD: Final = 600
SPOT_USD: Final = SPOT / 1e6
ON_DEMAND_USD: Final = ON_DEMAND / 1e6
NOW_S: Final = 7 * HOUR_S
"""When the events end: the job trains on on-demand nodes."""
PLACES: Final = ("local/local-a", "local/local-b")


def plan_submission() -> Submitted:
    """The submission of a job with 8 hours of work, due after 14."""
    return submitted(
        name="due",
        checkpoint={"store": "s3://bucket/prefix"},
        limits={"deadline": "14h", "max_cost_usd": BUDGET_USD},
        plan={"work": "8h"},
    )


def planned(
    seconds: float,
    capacity: CapacityType | None,
    reason: PlanReason,
    *,
    left_h: float = WORK_H,
    late: float = 0.02,
    end_h: float = 10.0,
    usd: float = 40.0,
) -> Planned:
    """A choice with a forecast of the end, in hours after the submission, and of the cost."""
    slack_s = DEADLINE_H * HOUR_S - seconds - left_h * HOUR_S - CHANGEOVER_S
    return Planned(
        at=at(seconds),
        capacity=capacity,
        places=() if capacity is None else PLACES,
        reason=reason,
        remaining_s=left_h * HOUR_S,
        slack_s=slack_s,
        net_at=at(seconds + slack_s),
        changeover_s=CHANGEOVER_S,
        policy="holdfast",
        policy_version=1,
        market=market(seconds),
        forecast=PlanForecast(
            runs=128,
            cost_p10_usd=0.8 * usd,
            cost_p50_usd=usd,
            cost_p90_usd=1.5 * usd,
            end_p10=at((end_h - 1) * HOUR_S),
            end_p50=at(end_h * HOUR_S),
            end_p90=at((end_h + 2.5) * HOUR_S),
            late=late,
            over_budget=0.0,
            preemptions=1.4,
            lost_work_s=700.0,
        ),
    )


def market(seconds: float) -> MarketState:
    """Two places with spot and on-demand nodes, of which the first had some 20 minutes ago."""
    first, second = PLACES
    return MarketState(
        at=at(seconds),
        places=(
            PlaceState(
                name=first,
                region="local",
                spot_usd_per_hour=SPOT_USD,
                on_demand_usd_per_hour=ON_DEMAND_USD,
                priced_at=at(0),
                is_available=True,
                seen_at=at(seconds) - timedelta(minutes=20),
                observations=12,
            ),
            PlaceState(
                name=second,
                region="local",
                spot_usd_per_hour=1.2 * SPOT_USD,
                on_demand_usd_per_hour=ON_DEMAND_USD,
            ),
        ),
        tick_s=60.0,
        changeover_s=CHANGEOVER_S - 600.0,
        changeover_samples=3,
    )


def _launched(seconds: float, launch: int, capacity: CapacityType) -> LaunchRequested:
    placement = LaunchPlacement(capacity=capacity, places=PLACES)
    return LaunchRequested(at=at(seconds), launch=launch, placement=placement)


def plan_events() -> list[Event]:
    """All that followed the submission, in 7 hours."""
    spot, on_demand = CapacityType.SPOT, CapacityType.ON_DEMAND
    hours = HOUR_S
    return [
        planned(1, spot, PlanReason.WAIT_FOR_SPOT),
        _launched(2, 1, spot),
        ready(0.5 * hours, zone="local-a"),
        training(0.55 * hours),
        saved(1.5 * hours, step=110),
        saved(2.5 * hours, step=230),
        lost(2.9 * hours),
        planned(
            4.9 * hours,
            on_demand,
            PlanReason.SAFETY_NET,
            left_h=6.2,
            late=0.11,
            end_h=11.5,
            usd=75.0,
        ),
        MoveRequested(at=at(4.9 * hours + 1), reason="moving to on-demand nodes at local/local-a"),
        Moved(at=at(4.9 * hours + 5), launch=1),
        _launched(4.9 * hours + 6, 2, on_demand),
        ready(5 * hours, attempt=2, zone="local-b", micros=ON_DEMAND),
        training(5.1 * hours, attempt=2, step=230),
        saved(6 * hours, attempt=2, step=340),
        saved(6.8 * hours, attempt=2, step=440),
    ]


def moved_away(seconds: float, *, attempt: int = 2) -> list[Event]:
    """The job gives its on-demand nodes up for spot nodes, and is moving."""
    return [
        planned(seconds, CapacityType.SPOT, PlanReason.AHEAD_OF_SCHEDULE, left_h=4.5, end_h=12.0),
        MoveRequested(at=at(seconds + 1), reason="moving to spot nodes at local/local-a"),
        lost(seconds + 30, attempt=attempt, cause=Cause.MOVED),
    ]
