"""Resume of a paused job, also with other nodes, and its preview."""

from __future__ import annotations

from pydantic import Field, StrictBool, StrictInt

from holdfast.api.schemas.base import Schema
from holdfast.api.schemas.jobs import LimitsIn


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
