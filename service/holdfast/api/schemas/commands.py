"""Schemas of commands on the nodes of jobs; shared with the client."""

from __future__ import annotations

from typing import Annotated

from holdfast_worker.protocol.node_commands import (
    MAX_ARGUMENTS,
    MAX_COMMAND_S,
    MAX_OUTPUT_STREAM_BYTES,
)
from pydantic import Field

from holdfast.api.schemas.base import Schema, WorkerSchema
from holdfast.api.schemas.workers import MAX_NODES, MAX_SEQ

Argument = Annotated[str, Field(max_length=32_768)]
Runner = Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]
Encoded = Annotated[str, Field(max_length=2 * MAX_OUTPUT_STREAM_BYTES)]


class CommandIn(Schema):
    """A command for a node."""

    command: list[Argument] = Field(
        min_length=1, max_length=MAX_ARGUMENTS, description="The program and its arguments."
    )
    node: int = Field(default=0, ge=0, lt=MAX_NODES, description="Number of the node.")
    timeout_s: float = Field(
        default=60, gt=0, le=MAX_COMMAND_S, description="Seconds after which it is ended."
    )


class CommandOut(Schema):
    """A command on a node, with its output so far."""

    id: str
    job_id: str
    node: int
    attempt: int
    state: str = Field(description="waiting, running or ended.")
    exit_code: int | None = Field(
        description="Null until it has ended, and if its node reported no end."
    )
    detail: str = Field(description="What is not normal about its end; empty if nothing is.")
    stdout: str = Field(description="Standard output from `stdout_from` on, in base64.")
    stderr: str = Field(description="Standard error from `stderr_from` on, in base64.")


class NextCommandIn(WorkerSchema):
    """A node that asks for a command."""

    node: int = Field(ge=0, lt=MAX_NODES)
    attempt: int = Field(
        ge=0, le=MAX_SEQ, description="0 if the launcher does not number attempts."
    )
    terminals: bool = Field(default=False, description="Whether the node runs shells.")


class NextCommandOut(Schema):
    """A command for the node that asked."""

    id: str | None = Field(description="Null without a command.")
    command: list[str] = Field(
        default=[],
        description="The program and its arguments; empty for the usual shell of the node.",
    )
    timeout_s: float = Field(default=0, description="Seconds after which it is ended.")
    terminal: str | None = Field(
        default=None,
        description="Type of its terminal, as in TERM; null for a command without one.",
    )


class CommandStartIn(WorkerSchema):
    """A wrapper that is about to run a command."""

    runner: Runner


class CommandStartOut(Schema):
    """Whether that wrapper may run it."""

    starts: bool


class CommandOutputIn(WorkerSchema):
    """More output of a command, and its end."""

    runner: Runner
    stdout: Encoded = Field(description="In base64.")
    stderr: Encoded = Field(description="In base64.")
    stdout_at: int = Field(ge=0, le=MAX_SEQ, description="Bytes that were sent before.")
    stderr_at: int = Field(ge=0, le=MAX_SEQ)
    exit_code: int | None = Field(ge=0, le=255, description="Null while it runs.")
    detail: str = Field(max_length=2000)
