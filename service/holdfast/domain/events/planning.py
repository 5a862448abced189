"""Events of planned jobs: where they run next, on spot or on-demand nodes, and why.

A `Planned` contains all that its policy has seen, so that it can be recomputed from the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, TypeAlias

from pydantic import AwareDatetime, Field

from holdfast.domain.events.base import EventBase, Source
from holdfast.domain.events.values import Count

Measure: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
"""A finite number."""


class CapacityType(StrEnum):
    """How nodes are bought."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"


class PlanReason(StrEnum):
    """Why a plan chose what it did."""

    SPOT_IS_AVAILABLE = "spot_is_available"
    SPOT_STANDS = "spot_stands"
    WAIT_FOR_SPOT = "wait_for_spot"
    BEHIND_SCHEDULE = "behind_schedule"
    SAFETY_NET = "safety_net"
    AHEAD_OF_SCHEDULE = "ahead_of_schedule"
    LEAST_EXPECTED_COST = "least_expected_cost"
    ON_DEMAND_STANDS = "on_demand_stands"
    CHEAPER_PLACE = "cheaper_place"
    WITHIN_BUDGET = "within_budget"
    OVER_BUDGET = "over_budget"
    ON_DEMAND_DENIED = "on_demand_denied"
    """No place has on-demand nodes, so that spot nodes are asked for as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlacement:
    """What a launch asks for."""

    capacity: CapacityType
    places: tuple[str, ...]
    """In order of preference, by the names of `PlaceState`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceState:
    """What is known of a place at a moment: a cloud, a region, a zone, or a Slurm partition."""

    name: str
    """As in `infra` of a job file: `aws/us-east-1/us-east-1a`, `gcp/us-central1`, `slurm/cluster/partition`, `local/local-a`."""
    region: str
    """A start in another region than the last one moves the checkpoints."""
    spot_usd_per_hour: Measure | None = None
    """Price of all nodes of the job together; None if no spot nodes are sold there, or none are wanted."""
    on_demand_usd_per_hour: Measure | None = None
    """Likewise."""
    priced_at: AwareDatetime | None = None
    """Date of the older of the two prices; None if unknown."""
    is_price_estimate: bool = False
    """Whether a price is a high estimate for lack of a source."""
    is_available: bool | None = None
    """Whether spot nodes were there when they were last seen; None if that is unknown."""
    seen_at: AwareDatetime | None = None
    """When that was."""
    age_s: Measure = 0.0
    """Time since the place was last seen to change between available and not."""
    loss: Measure = 1.0
    """How often spot nodes are lost there, as a multiple of the usual rate at that age."""
    returns: Measure = 1.0
    """How often they become available again, likewise."""
    observations: Count = 0
    """Denials, placements and losses, or ticks of a recording, on which this rests."""
    hint: Measure | None = None
    """Probability of a placement according to the provider, 0 to 1; None without one. Orders places that are alike."""
    hint_source: str = ""
    hint_at: AwareDatetime | None = None
    hint_uptime_s: Measure | None = None
    """Time that most spot nodes can be expected to run according to the provider; None if it does not say."""
    hint_preemption_rate: Measure | None = None
    """Share of stopped spot nodes that the provider took, 0 to 1; None likewise. Orders places with the same hint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MarketState:
    """What is known of all places of a job at a moment."""

    at: AwareDatetime
    places: tuple[PlaceState, ...]
    """In the order of the job file."""
    tick_s: Measure
    """Interval of the policy's decisions."""
    changeover_s: Measure
    """Time from a launch to the first step, without the job's margin."""
    changeover_samples: Count = 0
    """Launches on which it rests; 0: it is assumed."""
    on_demand_wait_s: Measure = 0.0
    """Time for which on-demand nodes are awaited."""
    sees_all: bool = False
    """Whether the availability of all places is seen at all times, as on a recorded market. Otherwise only launches show it."""
    egress_usd: Measure = 0.0
    """Cost of a start in another region."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanForecast:
    """How a job is expected to end. Quantiles are those of simulated runs."""

    runs: Count
    cost_p10_usd: Measure
    """Cost of the whole job, including what is already paid."""
    cost_p50_usd: Measure
    cost_p90_usd: Measure
    end_p10: AwareDatetime
    end_p50: AwareDatetime
    end_p90: AwareDatetime
    late: Measure
    """Probability of missing the deadline."""
    over_budget: Measure
    """Probability of exceeding the budget."""
    preemptions: Measure
    """Mean number of further preemptions."""
    lost_work_s: Measure
    """Mean work that is done again after them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned(EventBase):
    """The plan of a job has changed. It stands until the next one."""

    source: ClassVar[Source] = Source.RECONCILER
    capacity: CapacityType | None
    """What the job runs on, or asks for; None: it waits without a request."""
    places: tuple[str, ...]
    """Where, in order of preference."""
    reason: PlanReason
    remaining_s: Measure
    """Work that is not in a complete checkpoint, as training time."""
    slack_s: Measure | None
    """Time that can be wasted before on-demand nodes would be late; None without a deadline."""
    net_at: AwareDatetime | None
    """When on-demand nodes must be requested at the latest if nothing is saved until then; None without a deadline."""
    changeover_s: Measure
    """Time without progress of a start, with the margin."""
    policy: str
    policy_version: Count
    market: MarketState
    forecast: PlanForecast | None = None
    warns: bool = False
    """Whether the deadline has become doubtful with this plan, of which users are notified."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveRequested(EventBase):
    """The plan needs other nodes: the worker saves and leaves, and the launch ends."""

    source: ClassVar[Source] = Source.RECONCILER
    reason: str
    """A sentence for users."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved(EventBase):
    """The launch of a moving job has ended; the next one may be requested."""

    source: ClassVar[Source] = Source.RECONCILER
    launch: int
    """Number of the launch that has ended."""


PlanFact: TypeAlias = Planned | MoveRequested | Moved
