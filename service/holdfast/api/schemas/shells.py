"""Schemas of shells on the nodes of jobs; shared with the client."""

from __future__ import annotations

from typing import Annotated, Final

from holdfast_worker.protocol.node_commands import MAX_ARGUMENTS
from holdfast_worker.protocol.node_shells import (
    MAX_SHELL_INPUT_BYTES,
    MAX_TERMINAL_SIZE,
    OUTPUT_BATCH_BYTES,
)
from pydantic import Field

from holdfast.api.schemas.base import Schema, WorkerSchema
from holdfast.api.schemas.commands import Argument, Runner
from holdfast.api.schemas.workers import MAX_COUNT, MAX_NODES

TERMINAL_TYPE: Final = r"^[0-9A-Za-z][0-9A-Za-z._+-]{0,63}$"

Offset = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Size = Annotated[int, Field(ge=1, le=MAX_TERMINAL_SIZE)]
EncodedInput = Annotated[str, Field(max_length=2 * MAX_SHELL_INPUT_BYTES)]
EncodedOutput = Annotated[str, Field(max_length=2 * OUTPUT_BATCH_BYTES)]


class ShellIn(Schema):
    """A shell on a node."""

    command: list[Argument] = Field(
        default=[],
        max_length=MAX_ARGUMENTS,
        description="The program and its arguments; empty: `bash -l`, or `sh` on a node without bash.",
    )
    node: int = Field(default=0, ge=0, lt=MAX_NODES, description="Number of the node.")
    terminal: str = Field(
        default="xterm", pattern=TERMINAL_TYPE, description="Type of the terminal, as in TERM."
    )
    columns: Size = Field(default=80, description="Width of the terminal.")
    rows: Size = Field(default=24, description="Height of the terminal.")


class ShellWriteIn(Schema):
    """What a user does at the terminal of a shell."""

    at: Offset = Field(description="Bytes of input that were written before.")
    data: EncodedInput = Field(default="", description="Input in base64.")
    columns: Size | None = Field(default=None, description="New width; null: unchanged.")
    rows: Size | None = Field(default=None, description="New height; null: unchanged.")
    close: bool = Field(default=False, description="Whether to end the shell.")


class StreamOut(Schema):
    """How much of a stream was taken."""

    next: int = Field(description="Bytes that were taken of all; what follows is to be sent again.")


class ShellReadIn(Schema):
    """How far the output of a shell was read."""

    at: Offset = Field(description="Bytes of output that were read; they are dropped.")


class ShellReadOut(Schema):
    """Output of a shell, and its state."""

    state: str = Field(description="waiting, running or ended; after its last output, ended.")
    exit_code: int | None = Field(
        description="Null until it has ended, and if its node reported no end."
    )
    detail: str = Field(description="What is not normal about its end; empty if nothing is.")
    at: int = Field(description="Bytes of output before `data`.")
    data: str = Field(description="Output in base64.")


class ShellInputIn(WorkerSchema):
    """A node that waits for input of a shell."""

    runner: Runner
    at: Offset = Field(description="Bytes of input that the program has; they are dropped.")
    columns: int = Field(ge=0, le=MAX_TERMINAL_SIZE, description="Known width; 0 at first.")
    rows: int = Field(ge=0, le=MAX_TERMINAL_SIZE, description="Known height; 0 at first.")


class ShellInputOut(Schema):
    """Input of a shell, and what its node has to know of the client."""

    data: str = Field(description="Input from `at` on, in base64.")
    columns: int
    rows: int
    closed: bool = Field(description="Whether the node has to end it.")
    silent_s: float = Field(description="Seconds since the last request of the client.")


class ShellOutputIn(WorkerSchema):
    """Output of a shell."""

    runner: Runner
    at: Offset = Field(description="Bytes of output that were sent before.")
    data: EncodedOutput = Field(description="In base64.")
