"""Resume of a paused job, also with other nodes, and its preview."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, StrictBool, StrictInt

from holdfast.api.schemas.base import Schema
from holdfast.api.schemas.jobs import LimitsIn
from holdfast.api.schemas.plans import PlanAlternativeOut


class NodeRangeIn(Schema):
    """Nodes of an elastic job."""

    min: StrictInt = Field(description="Nodes with which training continues after a loss.")
    max: StrictInt = Field(description="Nodes that the launcher provides.")


class ResumeIn(Schema):
    """Reason and changes for resuming a paused job."""

    reason: str = Field(default="resumed on request", max_length=500)
    limits: LimitsIn = Field(
        default_factory=LimitsIn, description="Limits that change from now on."
    )
    nodes: StrictInt | NodeRangeIn | None = Field(
        default=None, description="Number of nodes, or the range of an elastic job."
    )
    gpus: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Accelerators of each node, such as `A100:8`.",
    )
    infra: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Where nodes are looked for, as in a job file: `aws/us-east-1`, `slurm/gpu`, `local`.",
    )
    spot: StrictBool | None = Field(default=None, description="Spot or on-demand nodes.")
    force: StrictBool = Field(
        default=False,
        description="Accept risks as for a submission, and a folder as the store that the new nodes share.",
    )


class ResumeNodesOut(Schema):
    """The nodes of a job before or after a resume."""

    engine: str
    nodes: int
    min_nodes: int | None
    gpus: str = Field(description="Accelerators of each node; `none` without any.")
    place: str = Field(description="Where nodes are looked for.")
    capacity: str = Field(description="`spot`, `on-demand`, or `own` nodes that are not rented.")
    micros_per_hour: int | None = Field(
        description="Price of all nodes; null if unknown, or if they are not rented."
    )


class ResumeForecastOut(Schema):
    """How a job is expected to end on the nodes that a resume asks for, if it resumes now.

    Costs include what is already paid.
    """

    deadline_at: datetime | None = Field(description="Null without a deadline.")
    budget_micros: int | None = Field(description="Null without a limit of the cost.")
    work_s: float = Field(
        description="Training time of the whole job on these nodes without interruptions."
    )
    remaining_s: float = Field(description="Of it, what is in no complete checkpoint.")
    alternatives: list[PlanAlternativeOut] = Field(
        description="Ours first: as the plan chooses nodes, or without a plan, as the launcher does. With a plan, spot and "
        "on_demand follow where such nodes are sold."
    )
    sentence: str = Field(description="The forecast in one sentence.")
    issues: list[str] = Field(
        description="What no plan can keep, each with its place in the job file. They do not refuse the resume."
    )
    notes: list[str] = Field(description="Assumptions, as sentences.")


class ResumePreviewOut(Schema):
    """What a resume would change."""

    changes: list[str] = Field(description="What differs, as phrases; empty without other nodes.")
    before: ResumeNodesOut
    after: ResumeNodesOut
    ranks_before: int | None = Field(description="Null before the first attempt has trained.")
    ranks_after: int | None = Field(description="Null if it depends on the GPUs of the new nodes.")
    batch: str = Field(description="What changes for the batch of a step; empty if unknown.")
    checkpoints: str = Field(description="Where training continues.")
    notes: list[str]
    refused: list[str] = Field(description="Why the same request would be refused.")
    forecast: ResumeForecastOut | None = Field(
        default=None,
        description="Null if it is not known how long the job trains, or what its nodes cost.",
    )
    forecast_note: str = Field(
        default="", description="Why there is no forecast; empty with a forecast."
    )
