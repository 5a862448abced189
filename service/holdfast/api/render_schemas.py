"""What travels over the API when a job file is rendered. The client reads these, too."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool

from holdfast.api.schema import Schema
from holdfast.api.schemas import TaskIn

Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]+$", max_length=253)]


class ByHandIn(Schema):
    """Where a job is to be started by hand, by one torchrun for each node."""

    hosts: list[Host] = Field(
        default_factory=list,
        max_length=1000,
        description="Name or address of each node; they meet at the first. Empty: all are this machine.",
    )
    ranks: list[Annotated[int, Field(ge=1, le=1024)]] = Field(
        default_factory=list,
        max_length=1000,
        description="Processes on each node, or one number for all. Empty: one for each accelerator.",
    )
    port: int = Field(default=29400, ge=1024, le=65535, description="Where they meet.")
    nodes: int | None = Field(
        default=None, ge=1, le=1000, description="How many; null: as many as the job file says."
    )
    least_nodes: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="With how many it goes on where others are lost; null: with all alone.",
    )


class RenderTaskIn(TaskIn):
    """A job file to be rendered."""

    by_hand: ByHandIn | None = Field(
        default=None, description="Tell the commands, too, with which people start it themselves."
    )
    sbatch: StrictBool = Field(
        default=False, description="Tell the script, too, that people hand to sbatch themselves."
    )


class NodeCommandOut(Schema):
    """What is typed on one node."""

    host: str
    ranks: int = Field(description="Processes there.")
    command: str = Field(description="Text for a shell.")


class RenderOut(Schema):
    """What would be launched."""

    engine: str = Field(description="Which launcher it would go to.")
    task: str = Field(description="The SkyPilot task as YAML.")
    by_hand: list[NodeCommandOut] = Field(
        default_factory=list, description="Of each node, if it was asked for."
    )
    sbatch: str = Field(default="", description="The script, if it was asked for; else empty.")
    notes: list[str] = Field(description="What was put right or has no effect, as sentences.")
    refused: list[str] = Field(
        default_factory=list,
        description="Why submit would refuse the same request now, one reason each; empty: it would not.",
    )
