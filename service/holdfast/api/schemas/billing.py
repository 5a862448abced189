"""Schemas of bills, budgets and costs; shared with the client."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from pydantic import Field, StrictFloat, StrictInt, field_validator

from holdfast.api.schemas.base import Schema
from holdfast.domain.billing.phases import Phases


class PhasesOut(Schema):
    """Amounts by phase: milliseconds or micro-dollars."""

    setup: int
    restore: int
    useful: int
    stalled: int
    lost: int
    unmeasured: int = Field(default=0, description="Of a program that has reported nothing.")

    @classmethod
    def from_phases(cls, phases: Phases) -> PhasesOut:
        """Convert phases."""
        return cls(
            setup=phases.setup,
            restore=phases.restore,
            useful=phases.useful,
            stalled=phases.stalled,
            lost=phases.lost,
            unmeasured=phases.unmeasured,
        )


class GroupOut(Schema):
    """Nodes of one attempt with the same type and price."""

    name: str = Field(
        default="", description="Name of the node group; empty if the job file has none."
    )
    zone: str = Field(description="Newest zone of the nodes; empty if they were never there.")
    nodes: int
    is_spot: bool
    micros: PhasesOut
    paid_micros: int


class PriceStepOut(Schema):
    """The price of a group's nodes from a time on, in micro-dollars per hour."""

    at: datetime
    group: int = Field(description="Number of the group, from 0.")
    micros_per_hour: int
    source: str = Field(
        description="Source of the price, or the node that was lost or replaced, such as `node 1 was lost`."
    )


class AdjustmentOut(Schema):
    """The amount that a provider rule adds to a bill or subtracts from it."""

    attempt: int
    zone: str
    rule: str = Field(description="minimum or first_hour.")
    micros: int = Field(description="Negative for a credit.")
    source: str = Field(description="Page on which the provider documents the rule.")


class AttemptOut(Schema):
    """One attempt, from the end of the previous one to its own end."""

    attempt: int
    zone: str
    nodes: int
    cloud: str | None = Field(default=None, description="Null if unknown.")
    instance_type: str | None = Field(default=None, description="Null if unknown.")
    ready_at: datetime
    ended_at: datetime | None = Field(description="Null while the nodes are running.")
    cause: str | None = Field(
        description="Why the nodes were lost; null while they are running or if the job ended."
    )
    drill: bool = Field(default=False, description="True if a user requested their loss.")
    simulated: bool
    price_source: str | None = Field(
        default=None, description="Source of the price; null if the launcher sets it."
    )
    price_as_of: datetime | None = Field(
        default=None, description="Date of the price at its source; null if unknown."
    )
    is_price_estimate: bool = Field(
        default=False, description="True if the price is unknown and assumed high."
    )
    first_step: int | None = Field(
        description="Step at which training resumed; null if it never trained."
    )
    last_step: int | None
    lost_steps: int
    notice_s: float | None = Field(description="Notice time; null without a notice.")
    waiting_ms: int = Field(description="Time without nodes.")
    paused_ms: int = Field(default=0, description="The part of it in which the job was paused.")
    degraded_ms: int = Field(
        default=0,
        description="The part of the useful time in which ranks of missing nodes ran on other nodes.",
    )
    ms: PhasesOut
    starts: list[PhasesOut] = Field(
        default_factory=list,
        description="The same time for each start of its ranks, in order: several if ranks failed and started again on the nodes.",
    )
    micros: PhasesOut
    paid_micros: int = Field(description="Total of all phases, before provider rules.")
    on_demand_micros: int = Field(
        description="On-demand cost of its useful work, and of the setup if it is the one to be paid."
    )
    groups: list[GroupOut] = Field(
        default_factory=list, description="Its nodes, by price and location."
    )
    price_changes: list[PriceStepOut] = Field(
        default_factory=list, description="Changes after the first price, in order of time."
    )


class GroupSpanOut(Schema):
    """A time in which a node group had nodes in one place, or none for one reason."""

    state: str = Field(
        description="running; missing: its nodes were lost, and other groups have theirs; provisioning: it has no nodes yet, and another group has; waiting: no group has nodes."
    )
    attempt: int = Field(description="Attempt in which it began.")
    last_attempt: int = Field(description="Newest attempt in which it lasted.")
    since: datetime
    until: datetime | None = Field(description="Null while it lasts.")
    zone: str | None = Field(description="Null without nodes.")
    cloud: str | None = Field(description="Null if unknown, or without nodes.")
    instance_type: str | None = Field(description="Null if unknown, or without nodes.")
    is_spot: bool | None = Field(description="Null without nodes.")
    micros_per_hour: int = Field(description="Newest price of its nodes together.")
    paid_micros: int
    cause: str | None = Field(
        description="Why its nodes were lost or released; null while they run, if the job ended with them, or without nodes."
    )
    drill: bool = Field(default=False, description="True if a user requested their loss.")


class NodeGroupOut(Schema):
    """A node group of the job file over all attempts."""

    name: str
    nodes: int
    preemptions: int = Field(description="Preempted, or failed without a notice.")
    running_ms: int = Field(description="Time with nodes.")
    missing_ms: int = Field(
        description="Time without nodes after a loss, while other groups had theirs."
    )
    paid_micros: int
    spans: list[GroupSpanOut] = Field(description="In order of time.")


class NodeLossOut(Schema):
    """The cost of one capacity loss, or of the loss of a single node."""

    attempt: int
    node: int | None = Field(
        default=None,
        description="The lost node, or the first one of a lost node group, if the others kept running; otherwise null.",
    )
    group: str = Field(
        default="",
        description="The lost node group; empty for losses of all nodes, and for a job without groups.",
    )
    replaced_after_ms: int | None = Field(
        default=None,
        description="Time until that node was replaced; null if it was not, and for other losses.",
    )
    at: datetime
    cause: str
    drill: bool = Field(default=False, description="True if a user requested it.")
    zone: str
    notice_s: float | None
    lost_steps: int
    lost_ms: int
    lost_micros: int


class ChargeOut(Schema):
    """A line of a bill beside the nodes: a quantity times the price of a unit."""

    category: str = Field(description="storage, requests, egress or disks.")
    item: str = Field(description="What was used, in words.")
    place: str | None = Field(
        description="Cloud and region, such as aws/us-east-1, or from where to where; null if unknown."
    )
    quantity: str = Field(description="Decimal number of units, rounded down to a millionth.")
    unit: str = Field(
        description="GiB-month, 1000 requests, GiB or disk-month; a month has 730 hours."
    )
    unit_micros: int | None = Field(description="Price of a unit; null if no price is known.")
    micros: int | None = Field(description="The amount; null if no price is known.")


class ChargesOut(Schema):
    """What a job costs beside its nodes."""

    until: datetime = Field(
        description="Stored checkpoints cost until then, also after the end of the job."
    )
    store_place: str | None = Field(
        description="Where the checkpoint store is; null without one, or if unknown."
    )
    lines: list[ChargeOut]
    micros: int = Field(description="Total of all lines with a price.")
    has_unpriced: bool = Field(description="True if no price is known for some line.")
    prices_source: str
    prices_as_of: str = Field(description="Date of the price list.")
    warning: str | None = Field(
        description="That the nodes and the checkpoint store are in different regions, and what that costs; null if they are not, or if it is unknown."
    )


class BillOut(Schema):
    """The bill of a job: every millisecond and micro-dollar."""

    job_id: str
    until: datetime
    attempts: list[AttemptOut]
    losses: list[NodeLossOut]
    groups: list[NodeGroupOut] = Field(
        default_factory=list,
        description="The node groups of its job file; empty if it has none, or before the first attempt.",
    )
    waiting_ms: int = Field(description="Time without nodes.")
    paused_ms: int = Field(default=0, description="The part of it in which the job was paused.")
    ms: PhasesOut
    micros: PhasesOut
    provisioned_ms: int
    adjustments: list[AdjustmentOut] = Field(
        default_factory=list, description="Total adjustment by provider rules."
    )
    adjusted_micros: int = Field(default=0, description="Total of all phases.")
    paid_micros: int = Field(description="Cost of all phases plus `adjusted_micros`.")
    on_demand_micros: int
    wasted_micros: int = Field(description="Cost of all phases except `useful` and `unmeasured`.")
    goodput: float | None = Field(
        default=None,
        description="Useful share of the measured time with nodes, 0 to 1; null if nothing was measured.",
    )
    goodput_with_waiting: float | None = Field(
        default=None, description="Useful share of measured and waiting time, 0 to 1."
    )
    saved_micros: int = Field(description="Negative if spot cost more than on demand would have.")
    lost_steps: int
    simulated: bool
    is_price_estimate: bool = Field(
        default=False, description="True if a price is unknown and assumed high."
    )
    charges: ChargesOut | None = Field(
        default=None,
        description="Storage, requests, egress and disks; null in a bundle of evidence.",
    )
    total_micros: int | None = Field(
        default=None,
        description="`paid_micros` and the priced lines of `charges`; null without them. Limits and budgets count `paid_micros` alone.",
    )


class SentenceOut(Schema):
    """One sentence of the history of a job."""

    at: datetime | None = Field(description="Time of the event; null for the current state.")
    text: str


Percent = Annotated[int, Field(ge=1, le=100)]


class BudgetIn(Schema):
    """The monthly budget of a project or user."""

    monthly_usd: StrictInt | StrictFloat | str = Field(
        description="US dollars, exact to a millionth."
    )
    warn_at: list[Percent] = Field(
        default_factory=lambda: [50, 80, 95],
        description="Percentages at which users are warned, each once per month.",
    )
    on_reached: str = Field(
        default="pause",
        pattern="^(pause|warn)$",
        description="pause: running jobs are paused and new ones wait; warn: notification only.",
    )

    @field_validator("warn_at")
    @classmethod
    def _in_order(cls, percents: list[int]) -> list[int]:
        return sorted(set(percents))


class BudgetOut(Schema):
    """A budget with this month's spending."""

    scope: str = Field(description="project or user.")
    name: str
    monthly_micros: int
    warn_at: list[int]
    on_reached: str
    month: str = Field(description="Such as 2026-03, in UTC.")
    spent_micros: int = Field(description="Spent this month until now.")
    committed_micros: int = Field(
        description="Cost of the running nodes until their workers have saved and exited."
    )
    micros_per_hour: int = Field(description="Total price of the running nodes.")
    warned_at: list[int] = Field(description="The percentages of `warn_at` that were notified.")
    is_spent: bool = Field(description="Whether only the reserve for saving is left.")
    simulated: bool = Field(description="True if any price of this month is simulated.")
    is_price_estimate: bool = Field(
        description="True if any price of this month is unknown and assumed high."
    )


class ChargeSumsOut(Schema):
    """Micro-dollars beside the nodes, as far as prices are known."""

    storage: int = Field(default=0, description="Stored checkpoints.")
    requests: int = Field(default=0, description="Requests to checkpoint stores.")
    egress: int = Field(default=0, description="Bytes between nodes and stores.")
    disks: int = Field(default=0, description="Disks of rented nodes.")


class CostOut(Schema):
    """One total: milliseconds and micro-dollars."""

    key: str = Field(
        description="Id of the job, `<job>/<attempt>`, name of the user, project or zone, value of the tag, or day in UTC; empty if unset."
    )
    label: str | None = Field(description="Name of the job; null for other keys.")
    part: str | None = Field(
        default=None,
        description="Key of `each`, in the format of `key`; null without `each`.",
    )
    jobs: int = Field(
        description="Number of jobs with time in it. What they cost beside the nodes may be of further jobs."
    )
    waiting_ms: int
    ms: PhasesOut
    provisioned_ms: int
    node_ms: int = Field(description="Provisioned time of all nodes together.")
    micros: PhasesOut
    adjusted_micros: int = Field(description="Total adjustment by provider rules.")
    paid_micros: int
    on_demand_micros: int
    saved_micros: int
    wasted_micros: int
    goodput: float | None = Field(
        description="Useful share of the provisioned time; null if nothing was provisioned."
    )
    goodput_with_waiting: float | None
    simulated: bool = Field(description="True if any price is simulated.")
    is_price_estimate: bool = Field(description="True if any price is unknown and assumed high.")
    charges: ChargeSumsOut = Field(
        default_factory=ChargeSumsOut, description="What is beside the nodes, in micro-dollars."
    )
    charged_micros: int = Field(default=0, description="Total of `charges`.")
    total_micros: int | None = Field(
        default=None,
        description="`paid_micros` and `charged_micros`; null from earlier versions. Limits and budgets count `paid_micros` alone.",
    )
    has_unpriced: bool = Field(
        default=False,
        description="True if something beside the nodes has no known price, which `charges` lacks.",
    )


class CostsOut(Schema):
    """Total costs of jobs."""

    by: str
    each: str | None = Field(
        default=None, description="Second key within the days; null if not requested."
    )
    since: date | None = Field(description="First day in UTC; null: no lower limit.")
    until: date | None = Field(description="Last day in UTC; null: until now.")
    costs: list[CostOut] = Field(
        description="Most expensive nodes first; by day, oldest first and within a day most expensive nodes first."
    )
    left_out: int = Field(description="Number of totals beyond `limit`.")
    total: CostOut = Field(description="Grand total, including those beyond `limit`.")
    pending: int = Field(
        description="Jobs that ended a moment ago, or before an upgrade or a change of prices beside the nodes, and are not included with their current values yet."
    )
    prices_source: str | None = Field(
        default=None,
        description="Price list of what is beside the nodes; null from earlier versions.",
    )
    prices_as_of: str | None = Field(default=None, description="Date of that list.")
