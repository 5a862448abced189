"""Schemas of plans: forecasts of job files, and plans of jobs; shared with the client.

Money is integer micro-dollars, for all nodes of a job together.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from holdfast.api.schemas.base import Schema
from holdfast.api.schemas.jobs import Amount, TaskIn


class PlanIn(TaskIn):
    """A job file to plan, with values that override the file's. Nothing is stored."""

    deadline: str | None = Field(
        default=None,
        description="A duration from now, or a time with its zone; null: that of the job file.",
    )
    max_cost_usd: Amount | None = Field(
        default=None, description="US dollars; null: the limit of the job file."
    )
    objective: str | None = Field(
        default=None, description="cheapest or fastest; null: that of the job file."
    )
    work: str | None = Field(
        default=None,
        description="Training time of the whole job without interruptions, such as 31h; null: that of the job file.",
    )


class CostRangeOut(Schema):
    """Costs of a whole job: 10, 50 and 90 of 100 simulated runs cost at most this."""

    p10: int
    p50: int
    p90: int


class TimeRangeOut(Schema):
    """Ends of a job: 10, 50 and 90 of 100 simulated runs end by then."""

    p10: datetime
    p50: datetime
    p90: datetime


class ForecastOut(Schema):
    """How a job is expected to end."""

    at: datetime = Field(description="When it was made.")
    runs: int = Field(description="Simulated runs on which it rests.")
    cost_micros: CostRangeOut = Field(description="Cost, with what is already paid.")
    end_at: TimeRangeOut
    late: float = Field(description="Probability of missing the deadline, 0 to 1.")
    over_budget: float = Field(description="Probability of exceeding the budget, 0 to 1.")
    preemptions: float = Field(description="Mean number of further preemptions.")
    lost_work_s: float = Field(description="Mean work that is done again after them.")


class PlanAlternativeOut(ForecastOut):
    """How a job would end if its nodes were chosen in a certain way."""

    name: Literal["ours", "spot", "on_demand"] = Field(
        description="ours: by the policy of the plan; spot: spot nodes only; on_demand: on-demand nodes only."
    )


class PlanPlaceOut(Schema):
    """What is known of a place: a cloud, a region, a zone, or a Slurm partition."""

    name: str = Field(description="As `infra` in a job file, such as aws/us-east-1/us-east-1a.")
    region: str
    spot_micros_per_hour: int | None = Field(
        description="Null if no spot nodes are sold there, or none are wanted."
    )
    on_demand_micros_per_hour: int | None = Field(
        description="Null if no on-demand nodes are sold there, or none are wanted."
    )
    priced_at: datetime | None = Field(
        description="Date of the older of the two prices; null if unknown."
    )
    is_price_estimate: bool = Field(description="True if a price is unknown and assumed high.")
    is_available: bool | None = Field(
        description="Whether spot nodes were there when they were last seen; null if never seen."
    )
    seen_at: datetime | None = Field(description="When that was; null if never seen.")
    observations: int = Field(
        description="Denials, placements and losses, or intervals of a recording, that are known of it."
    )
    hint: float | None = Field(
        description="Probability of a placement according to the provider, 0 to 1; null without one."
    )
    hint_source: str
    hint_at: datetime | None
    hint_uptime_s: float | None = Field(
        description="Time that most spot nodes can be expected to run according to the provider; null if it does not say."
    )
    hint_preemption_rate: float | None = Field(
        description="Share of stopped spot nodes that the provider took in the last days, 0 to 1; null if it does not say."
    )


class PlanPreviewOut(Schema):
    """The forecast of a job file."""

    objective: str = Field(description="cheapest or fastest.")
    policy: str = Field(description="The policy that would choose the nodes.")
    deadline_at: datetime | None = Field(description="Null without a deadline.")
    budget_micros: int | None = Field(description="Null without a limit of the cost.")
    work_s: float = Field(description="Training time of the whole job without interruptions.")
    changeover_s: float = Field(
        description="Time without progress of each start, with the margin of the plan."
    )
    changeover_samples: int = Field(description="Launches on which that rests; 0: it is assumed.")
    on_demand_wait_s: float = Field(description="Time for which on-demand nodes are awaited.")
    alternatives: list[PlanAlternativeOut] = Field(
        description="Ours first; spot and on_demand where such nodes are sold. Empty if no place sells any."
    )
    places: list[PlanPlaceOut] = Field(description="In the order of the job file.")
    observations: int = Field(description="Observations of all places, on which this rests.")
    sentence: str = Field(description="The forecast in one sentence.")
    refusals: list[str] = Field(
        description="What no plan can keep, each with its place in the job file; a submission is refused with them."
    )
    notes: list[str] = Field(description="Assumptions, as sentences.")


class PlanProgressOut(Schema):
    """A complete checkpoint."""

    at: datetime
    saved_s: float = Field(description="Work that it holds, as training time.")


class PlanNetOut(Schema):
    """A point of the line below which on-demand nodes must run."""

    at: datetime
    needed_s: float = Field(description="Work that must be saved by then; never negative.")


class PlanChoiceOut(Schema):
    """One choice of a plan."""

    at: datetime
    until: datetime | None = Field(
        description="The next choice, or the end of the job; null if it stands."
    )
    capacity: Literal["spot", "on_demand"] | None = Field(
        description="What the job runs on, or asks for; null: it waits without a request."
    )
    places: list[str] = Field(description="In order of preference.")
    reason: str = Field(description="Such as safety_net; see the reference of events.")
    sentence: str
    slack_s: float | None = Field(
        description="Time that could be wasted before on-demand nodes would be late; null without a deadline."
    )
    remaining_s: float = Field(description="Work that was in no complete checkpoint.")
    net_at: datetime | None = Field(
        description="When on-demand nodes had to be requested at the latest; null without a deadline."
    )
    policy: str
    policy_version: int
    late: float | None = Field(
        description="Probability of missing the deadline; null if it was not forecast."
    )
    moved: bool = Field(description="Whether the job left its nodes for this choice.")


class JobPlanOut(Schema):
    """The plan of a job: the present choice and its reason, the forecast, and earlier choices."""

    job_id: str
    objective: str
    policy: str
    capacity: Literal["spot", "on_demand"] | None = Field(
        description="What the job runs on, or asks for; null: it waits without a request, or has no plan yet."
    )
    places: list[str] = Field(description="In order of preference; empty before the first plan.")
    reason: str | None = Field(description="Null before the first plan.")
    since: datetime | None = Field(
        description="Since when this choice stands; null before the first."
    )
    sentence: str = Field(description="The present choice, and why.")
    next: str = Field(
        description="What would change it, and when at the latest; empty after the end of the job."
    )
    net_at: datetime | None = Field(
        description="When on-demand nodes must be requested at the latest if nothing is saved until then; null without a deadline."
    )
    slack_s: float | None = Field(
        description="Time that can be wasted before that, negative if it has passed; null without a deadline."
    )
    remaining_s: float = Field(description="Work that is in no complete checkpoint.")
    work_s: float = Field(description="Training time of the whole job, as measured so far.")
    saved_s: float = Field(description="Work that complete checkpoints hold.")
    changeover_s: float = Field(
        description="Time without progress of each start, with the margin of the plan."
    )
    deadline_at: datetime | None
    budget_micros: int | None
    paid_micros: int
    forecast: ForecastOut | None = Field(
        description="The newest one; null before the first and after the end of the job."
    )
    first_forecast: ForecastOut | None = Field(
        description="The first one, to compare with what has happened."
    )
    places_now: list[PlanPlaceOut]
    progress: list[PlanProgressOut] = Field(
        description="Complete checkpoints, oldest first; at most 500."
    )
    net: list[PlanNetOut] = Field(
        description="Two points of a straight line: where any work is needed first, and where all of it is; "
        "empty without a deadline."
    )
    choices: list[PlanChoiceOut] = Field(description="Newest first.")
    choices_next: int | None = Field(
        description="Pass as `before` for earlier choices; null if there are none."
    )
