"""What travels over the API about bills. The client reads these, too.

What travels over the API about budgets. The client reads these, too.

What travels over the API about costs. The client reads these, too.
"""

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
    def of(cls, phases: Phases) -> PhasesOut:
        """The same, to be told."""
        return cls(
            setup=phases.setup,
            restore=phases.restore,
            useful=phases.useful,
            stalled=phases.stalled,
            lost=phases.lost,
            unmeasured=phases.unmeasured,
        )


class GroupOut(Schema):
    """Nodes of one attempt that are alike."""

    zone: str
    nodes: int
    is_spot: bool
    micros: PhasesOut
    paid_micros: int


class PriceStepOut(Schema):
    """What the nodes of a group cost from a moment on, in micro-dollars an hour."""

    at: datetime
    group: int = Field(description="Which of the groups, from 0.")
    micros_per_hour: int
    source: str


class AdjustmentOut(Schema):
    """What a rule of a provider adds to a bill, or takes from it."""

    attempt: int
    zone: str
    rule: str = Field(description="minimum or first_hour.")
    micros: int = Field(description="Negative for a credit.")
    source: str = Field(description="The page on which the provider says so.")


class AttemptOut(Schema):
    """One attempt: from the end of the one before until its own end."""

    attempt: int
    zone: str
    nodes: int
    cloud: str | None = Field(default=None, description="Null where nobody said whose they are.")
    instance_type: str | None = Field(default=None, description="Null where nobody said.")
    ready_at: datetime
    ended_at: datetime | None = Field(description="Null while the nodes stand.")
    cause: str | None = Field(
        description="Why the nodes were lost; null while they stand or when the job ended."
    )
    simulated: bool
    price_source: str | None = Field(
        default=None, description="Who told the price; null where the launcher sets it itself."
    )
    price_as_of: datetime | None = Field(
        default=None, description="When that source had it so; null where nobody said."
    )
    is_price_estimate: bool = Field(
        default=False, description="True where nobody told a price, so that it is taken to be high."
    )
    first_step: int | None = Field(description="Where training went on; null if it never trained.")
    last_step: int | None
    lost_steps: int
    notice_s: float | None = Field(description="Warning that was given; null when none was told.")
    waiting_ms: int = Field(description="Time without nodes.")
    paused_ms: int = Field(default=0, description="The part of it in which the job was paused.")
    ms: PhasesOut
    micros: PhasesOut
    paid_micros: int = Field(description="Of all phases, before the rules of providers.")
    on_demand_micros: int = Field(
        description="What its useful work, and the setup if it is the one that has to be paid, would have cost on demand."
    )
    groups: list[GroupOut] = Field(
        default_factory=list, description="Its nodes, by what they cost and where they stand."
    )
    price_changes: list[PriceStepOut] = Field(
        default_factory=list, description="After the first price, in order of time."
    )


class NodeLossOut(Schema):
    """What one loss of nodes cost."""

    attempt: int
    at: datetime
    cause: str
    zone: str
    notice_s: float | None
    lost_steps: int
    lost_ms: int
    lost_micros: int


class BillOut(Schema):
    """Where every millisecond and every micro-dollar of a job went."""

    job_id: str
    until: datetime
    attempts: list[AttemptOut]
    losses: list[NodeLossOut]
    waiting_ms: int = Field(description="Time without nodes.")
    paused_ms: int = Field(default=0, description="The part of it in which the job was paused.")
    ms: PhasesOut
    micros: PhasesOut
    provisioned_ms: int
    adjustments: list[AdjustmentOut] = Field(
        default_factory=list, description="What the rules of providers have moved."
    )
    adjusted_micros: int = Field(default=0, description="Their sum.")
    paid_micros: int = Field(description="The money of all phases, and `adjusted_micros`.")
    on_demand_micros: int
    wasted_micros: int = Field(description="The money of all phases but `useful` and `unmeasured`.")
    goodput: float | None = Field(
        default=None,
        description="Useful share of the measured time with nodes, 0 to 1; null where none was measured.",
    )
    goodput_with_waiting: float | None = Field(
        default=None, description="Useful share of measured and waiting time, 0 to 1."
    )
    saved_micros: int = Field(description="Negative when spot cost more than on demand would have.")
    lost_steps: int
    simulated: bool
    is_price_estimate: bool = Field(
        default=False, description="True where nobody told a price, so that it is taken to be high."
    )


class SentenceOut(Schema):
    """One sentence of the story of a job."""

    at: datetime | None = Field(description="When it happened; null for what is so now.")
    text: str


Percent = Annotated[int, Field(ge=1, le=100)]


class BudgetIn(Schema):
    """What a project or a user may spend in a month."""

    monthly_usd: StrictInt | StrictFloat | str = Field(
        description="US dollars, exact to a millionth."
    )
    warn_at: list[Percent] = Field(
        default_factory=lambda: [50, 80, 95],
        description="Percent of it at which people are warned, each once in a month.",
    )
    on_reached: str = Field(
        default="pause",
        pattern="^(pause|warn)$",
        description="pause: its jobs are paused and none is begun; warn: it is only said.",
    )

    @field_validator("warn_at")
    @classmethod
    def _in_order(cls, percents: list[int]) -> list[int]:
        return sorted(set(percents))


class BudgetOut(Schema):
    """A budget, and what is spent of it in this month."""

    scope: str = Field(description="project or user.")
    name: str
    monthly_micros: int
    warn_at: list[int]
    on_reached: str
    month: str = Field(description="As in 2026-03, in UTC.")
    spent_micros: int = Field(description="In this month, until now.")
    committed_micros: int = Field(
        description="What the nodes that stand will cost until their workers have saved and left."
    )
    micros_per_hour: int = Field(description="What the nodes that stand cost together.")
    warned_at: list[int] = Field(description="Of `warn_at`, those that people were told of.")
    is_spent: bool = Field(description="Whether no more is left than the time to save.")
    simulated: bool = Field(description="True if any price of this month in it is simulated.")
    is_price_estimate: bool = Field(
        description="True if nobody told a price of this month in it, which is taken to be high."
    )


class CostOut(Schema):
    """One sum: milliseconds and micro-dollars."""

    key: str = Field(
        description="Id of the job, `<job>/<attempt>`, name of the user, project or zone, value of the tag, or day in UTC; empty where there is none."
    )
    label: str | None = Field(description="Name of the job; null for others.")
    part: str | None = Field(
        default=None,
        description="Which of `each` it is of, written like `key`; null where none was asked.",
    )
    jobs: int = Field(description="How many jobs have a part in it.")
    waiting_ms: int
    ms: PhasesOut
    provisioned_ms: int
    node_ms: int = Field(description="The provisioned time of each node, all together.")
    micros: PhasesOut
    adjusted_micros: int = Field(description="What the rules of providers have moved.")
    paid_micros: int
    on_demand_micros: int
    saved_micros: int
    wasted_micros: int
    goodput: float | None = Field(
        description="Useful for each provisioned time; null where nothing was provisioned."
    )
    goodput_with_waiting: float | None
    simulated: bool = Field(description="True if any price in it is simulated.")
    is_price_estimate: bool = Field(description="True if nobody told a price in it.")


class CostsOut(Schema):
    """Sums over jobs."""

    by: str
    each: str | None = Field(
        default=None, description="What those are told apart by once more; null: nothing."
    )
    since: date | None = Field(description="First day in UTC; null: from the beginning.")
    until: date | None = Field(description="Last day in UTC; null: until now.")
    costs: list[CostOut] = Field(
        description="The dearest first; by day, the oldest first, and of one day the dearest."
    )
    left_out: int = Field(description="How many more there are beyond `limit`.")
    total: CostOut = Field(description="Of all, those beyond `limit` included.")
    pending: int = Field(
        description="Jobs that ended a moment ago, or before an upgrade, and are not in it yet."
    )
