"""Schemas of preemption statistics; shared with the client."""

from __future__ import annotations

from datetime import date, datetime

from pydantic import Field

from holdfast.api.schemas.base import Schema


class RecoveryOut(Schema):
    """Mean seconds from a capacity loss to full recovery; null if not reported."""

    detect_s: float | None = Field(
        description="From the last heartbeat until the loss was detected."
    )
    wait_s: float | None = Field(description="Without nodes.")
    setup_s: float | None = Field(description="Until the program started on the next nodes.")
    restore_s: float | None = Field(description="Until it trained.")
    redo_s: float | None = Field(description="Until the lost work was recomputed.")


class PreemptionOut(Schema):
    """Totals over placements.

    They count preemptions; capacity losses of other causes are counted separately.
    """

    zone: str | None = Field(description="Null if not grouped by zone.")
    hour: int | None = Field(description="Hour in UTC; null if not grouped by hour.")
    instance_type: str | None
    cause: str | None = Field(description="Null if not grouped by cause.")
    taken: int = Field(description="Preempted, or failed without a notice.")
    causes: dict[str, int] = Field(
        description="All capacity losses, by cause; those that users requested as `drill`."
    )
    drills: int = Field(
        default=0,
        description="Losses that users requested. They say nothing about the market, so no other figure includes them.",
    )
    node_hours: float
    per_100_node_hours: float | None = Field(
        description="Preemptions per 100 node-hours; null below 5 of them, and for other causes."
    )
    per_100_node_hours_low: float | None = Field(
        description="Lower end of its 90 % confidence interval (Garwood)."
    )
    per_100_node_hours_high: float | None
    node_hours_between: float | None = Field(
        description="Mean node-hours between preemptions; null like the rate."
    )
    node_hours_between_low: float | None
    node_hours_between_high: float | None
    noticed: int = Field(description="Preemptions with notice.")
    notice_used: int = Field(description="Those of them with work saved within the notice.")
    notice_s: float | None = Field(description="Mean notice; null if unknown.")
    recovery: RecoveryOut
    lost_steps: int
    lost_ms: int
    lost_micros: int
    simulated: bool = Field(description="True if any price is simulated.")
    is_price_estimate: bool = Field(description="True if any price is an estimate.")


class SurvivalOut(Schema):
    """A point of the survival curve."""

    hours: float
    share: float = Field(description="Share of placements that last longer, 0 to 1.")
    at_risk: int = Field(
        description="Placements that had reached this lifetime; the loss of a single node begins a new one."
    )
    taken: int


class PreemptionsOut(Schema):
    """Preemption statistics."""

    by: str
    since: date | None
    until: date | None
    preemptions: list[PreemptionOut] = Field(
        description="Most losses first; grouped by hour, in order of hours."
    )
    total: PreemptionOut
    survival: list[SurvivalOut] = Field(
        description="Kaplan-Meier estimate over placements; those that were not preempted are censored."
    )
    survival_mean_hours: float | None = Field(
        description="Placement hours per preemption; null below 5. At a constant rate, a share of exp(-hours / this) would last longer."
    )
    pending: int = Field(
        description="Jobs that ended a moment ago, or before an upgrade, and are not included yet."
    )


class NoticeOut(Schema):
    """Capacity losses with similar notice."""

    over_s: float | None = Field(description="Lower limit of the notice in seconds, exclusive.")
    until_s: float | None = Field(description="Upper limit in seconds, inclusive; null: no limit.")
    taken: int
    used: int = Field(description="Those of them with work saved within the notice.")


class NoticesOut(Schema):
    """Distribution of notice before preemptions."""

    since: date | None
    until: date | None
    without: int = Field(description="Losses without notice.")
    unsaid: NoticeOut = Field(description="Losses whose notice gave no remaining time.")
    notices: list[NoticeOut] = Field(description="The others, shortest notice first.")


class PreemptionDayOut(Schema):
    """Preemptions of one day."""

    day: date = Field(description="In UTC.")
    taken: int = Field(description="Preempted, or failed without a notice.")
    noticed: int = Field(description="Of these, preemptions with a notice.")
    notice_used: int = Field(
        description="Of these, preemptions with a checkpoint committed within the notice."
    )


class PreemptionRecordOut(Schema):
    """A preemption of a job."""

    at: datetime = Field(description="When its nodes were lost.")
    job_id: str
    name: str
    project: str
    attempt: int
    node: int | None = Field(
        default=None,
        description="The lost node, if the others kept running and waited for its replacement; otherwise null.",
    )
    group: str = Field(
        default="", description="The lost node group; empty for a job without groups."
    )
    zone: str
    instance_type: str | None = Field(description="Null where the launcher did not report it.")
    cause: str
    drill: bool = Field(
        default=False,
        description="True if a user requested it; `cause` is then `drill`, and no day counts it.",
    )
    is_noticed: bool
    notice_s: float | None = Field(
        description="Length of the notice; null without a notice, or where it was not reported."
    )
    is_notice_used: bool = Field(
        description="True if a checkpoint was committed within the notice."
    )
    lost_steps: int
    lost_ms: int
    lost_micros: int
    wait_ms: int | None = Field(
        description="Time without nodes after it; null while the job waits, or if it ended. If `node` is set: until that node was replaced, or the others ended."
    )
    simulated: bool = Field(description="True if its price is simulated.")
    is_price_estimate: bool = Field(description="True if its price is an estimate.")


class PreemptionHistoryOut(Schema):
    """Preemptions by day, and the newest single ones."""

    since: date | None
    until: date | None
    days: list[PreemptionDayOut] = Field(
        description="The oldest day first, without days that had no preemption."
    )
    preemptions: list[PreemptionRecordOut] = Field(description="Newest first.")
    left_out: int = Field(description="Older preemptions that `days` counts and `limit` omits.")


class PreemptionCostOut(Schema):
    """Cost of one job's capacity losses."""

    job_id: str
    name: str
    project: str
    taken: int
    lost_steps: int
    lost_ms: int
    lost_micros: int
    wait_ms: int = Field(description="Total time without nodes after them.")
    simulated: bool = Field(description="True if any price is simulated.")
    is_price_estimate: bool = Field(description="True if any price is an estimate.")


class PreemptionCostsOut(Schema):
    """Jobs with the most expensive lost work first."""

    since: date | None
    until: date | None
    jobs: list[PreemptionCostOut]
