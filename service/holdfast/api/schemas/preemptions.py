"""What travels over the API about losses of nodes. The client reads these, too."""

from __future__ import annotations

from datetime import date

from pydantic import Field

from holdfast.api.schemas.base import Schema


class RecoveryOut(Schema):
    """Seconds from a loss until all was as before, on average; null where nobody told."""

    detect_s: float | None = Field(
        description="From the last that was heard of the nodes until their loss was written down."
    )
    wait_s: float | None = Field(description="Without nodes.")
    setup_s: float | None = Field(description="Until the program was up on the next ones.")
    restore_s: float | None = Field(description="Until it trained.")
    redo_s: float | None = Field(description="Until it had done again what was lost.")


class PreemptionOut(Schema):
    """One sum over placements. Its figures are of what was taken; losses for other causes are counted apart."""

    zone: str | None = Field(description="Null where zones are not told apart.")
    hour: int | None = Field(description="Of the day in UTC; null where hours are not told apart.")
    instance_type: str | None
    cause: str | None = Field(description="Null where causes are not told apart.")
    taken: int = Field(description="Preempted, or failed without a notice.")
    causes: dict[str, int] = Field(description="All losses, by cause.")
    node_hours: float
    per_100_node_hours: float | None = Field(
        description="Losses that were taken; null below 5 of them, and for other causes."
    )
    per_100_node_hours_low: float | None = Field(
        description="The lower end of its 90 % interval, as Garwood has it."
    )
    per_100_node_hours_high: float | None
    node_hours_between: float | None = Field(
        description="Node-hours from one to the next; null as the rate."
    )
    node_hours_between_low: float | None
    node_hours_between_high: float | None
    noticed: int = Field(description="How many were announced.")
    notice_used: int = Field(description="Of those, how many had work saved in between.")
    notice_s: float | None = Field(description="Warning on average; null where nobody told it.")
    recovery: RecoveryOut
    lost_steps: int
    lost_ms: int
    lost_micros: int
    simulated: bool = Field(description="True if any price in it is simulated.")
    is_price_estimate: bool = Field(description="True if any price in it is an estimate.")


class SurvivalOut(Schema):
    """A point of the survival curve."""

    hours: float
    share: float = Field(description="Of placements that last longer, 0 to 1.")
    at_risk: int = Field(description="Placements that had stood for so long when it came.")
    taken: int


class PreemptionsOut(Schema):
    """What became of nodes."""

    by: str
    since: date | None
    until: date | None
    preemptions: list[PreemptionOut] = Field(
        description="The most losses first; where hours are told apart, in their order."
    )
    total: PreemptionOut
    survival: list[SurvivalOut] = Field(
        description="By Kaplan and Meier, over placements; whatever was not taken is censored."
    )
    survival_mean_hours: float | None = Field(
        description="Hours that placements have stood for each that was taken; null below 5. At a rate that does not change with age, a share of exp(-hours / this) would last longer."
    )
    pending: int = Field(
        description="Jobs that ended a moment ago, or before an upgrade, and are not in it yet."
    )


class NoticeOut(Schema):
    """Losses that had about the same warning."""

    over_s: float | None = Field(description="They had more than so many seconds.")
    until_s: float | None = Field(description="And no more than so many; null: there is no end.")
    taken: int
    used: int = Field(description="Of these, how many had work saved in between.")


class NoticesOut(Schema):
    """How much warning there was before nodes were taken."""

    since: date | None
    until: date | None
    without: int = Field(description="Losses that nobody announced.")
    unsaid: NoticeOut = Field(description="Losses whose notice did not say how much time is left.")
    notices: list[NoticeOut] = Field(description="The others, the least warning first.")


class PreemptionCostOut(Schema):
    """What one job has lost with nodes that were taken from it."""

    job_id: str
    name: str
    project: str
    taken: int
    lost_steps: int
    lost_ms: int
    lost_micros: int
    wait_ms: int = Field(description="How long it had no nodes after that, all together.")
    simulated: bool = Field(description="True if any price in it is simulated.")
    is_price_estimate: bool = Field(description="True if any price in it is an estimate.")


class PreemptionCostsOut(Schema):
    """The jobs whose lost work has cost the most, that one first."""

    since: date | None
    until: date | None
    jobs: list[PreemptionCostOut]
