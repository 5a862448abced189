"""Plans, markets and planners for tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from holdfast.domain.events import CapacityType, MarketState, PlaceState, Planned, PlanReason
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.plan import PlanSpec
from holdfast.domain.jobs.job import Job
from holdfast.domain.planning.placement import PlacementPlanner
from holdfast.domain.planning.policies import Threshold
from holdfast.domain.planning.situation import PlacementPolicy
from support.events import at

SPOT_USD, ON_DEMAND_USD = 1.0, 3.0
PLACES = ("aws/us-east-1", "gcp/us-central1")


def place_state(name: str = PLACES[0], **known: Any) -> PlaceState:
    """A place with both kinds of nodes."""
    prices = {"spot_usd_per_hour": SPOT_USD, "on_demand_usd_per_hour": ON_DEMAND_USD}
    return PlaceState(name=name, region=name, **{**prices, **known})


def market_state(
    *places: PlaceState, seconds: float = 0, sees_all: bool = False, **known: Any
) -> MarketState:
    """A market of places, of which all is seen or only what launches meet."""
    return MarketState(
        at=at(seconds),
        places=places or tuple(place_state(name) for name in PLACES),
        sees_all=sees_all,
        **{"tick_s": 600.0, "changeover_s": 600.0, **known},
    )


def planned(
    seconds: float = 0,
    capacity: CapacityType | None = CapacityType.SPOT,
    *places: str,
    reason: PlanReason = PlanReason.WAIT_FOR_SPOT,
    **known: Any,
) -> Planned:
    """A plan."""
    chosen = () if capacity is None else places or PLACES
    return Planned(
        at=at(seconds),
        capacity=capacity,
        places=chosen,
        reason=reason,
        **{
            "remaining_s": 3600.0,
            "slack_s": 600.0,
            "net_at": at(seconds + 600),
            "changeover_s": 600.0,
            "policy": "holdfast",
            "policy_version": 1,
            "market": market_state(seconds=seconds),
            **known,
        },
    )


@dataclass
class ScriptedPlanner:
    """A planner that chooses what the test says."""

    choice: Planned = field(default_factory=planned)
    forecasts: list[Planned] = field(default_factory=list)

    def plan(self, job: Job, now: datetime) -> Planned:
        del job
        return replace(self.choice, at=now)

    def with_forecast(self, job: Job, planned: Planned) -> Planned:
        del job
        self.forecasts.append(planned)
        return planned

    def ms_until_look(self, job: Job, now: datetime) -> int:
        del job, now
        return 60_000


def planner_of(
    market: MarketState | None = None,
    policy: PlacementPolicy | None = None,
    *,
    deadline: str | None = "10h",
    budget_usd: float | None = None,
    **plan: Any,
) -> PlacementPlanner:
    """The planner of a job with five hours of work."""
    written: dict[str, Any] = {"deadline": deadline, "max_cost_usd": budget_usd}
    limits = Limits.model_validate({k: v for k, v in written.items() if v is not None})
    spec = PlanSpec.model_validate({"work": "5h", "margin": 0, **plan})
    return PlacementPlanner(spec, limits, market or market_state(), policy or Threshold())
