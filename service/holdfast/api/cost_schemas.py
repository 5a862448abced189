"""What travels over the API about costs. The client reads these, too."""

from __future__ import annotations

from datetime import date

from pydantic import Field

from holdfast.api.bill_schemas import PhasesOut
from holdfast.api.schema import Schema


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
