"""Shells on the nodes of jobs: users open, write and read them, wrappers run them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from fastapi import Request
from holdfast_worker.protocol.node_commands import decode_bytes, encode_bytes
from holdfast_worker.protocol.node_shells import HOLD_S, MAX_SHELL_S

from holdfast.api.auth.authentication import TheActor, TheCaller
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routes.nodes.commands import (
    check_command,
    check_command_access,
    check_commands_enabled,
    command_view,
)
from holdfast.api.routing import Router
from holdfast.api.schemas.commands import CommandOut
from holdfast.api.schemas.shells import (
    ShellIn,
    ShellInputIn,
    ShellInputOut,
    ShellOutputIn,
    ShellReadIn,
    ShellReadOut,
    ShellWriteIn,
    StreamOut,
)
from holdfast.errors import BadReport, BadRequest
from holdfast.services import Services
from holdfast.store.nodes.commands import NewTerminal
from holdfast.store.nodes.shells import ShellPosition, TerminalChange

router = Router(prefix="/v1/jobs/{job_id}/shells", tags=["nodes"])
workers_router = Router(prefix="/v1/jobs/{job_id}/shells", tags=["workers"])

POLL_S: Final = 0.1
"""Seconds between two looks at a shell by a request that waits. A lower value adds queries for each open shell; a higher value delays
the terminal."""


@router.post("", status_code=201, response_model=CommandOut)
def open_shell(
    job: TheJob, body: ShellIn, services: TheServices, caller: TheCaller, actor: TheActor
) -> CommandOut:
    """Open a shell on a node of a job: a program with a terminal, in the job's environment.

    The audit log records the node and the program, not what is written or read. It is ended after 8 h, or 60 s after the last request of its
    client.
    """
    check_command_access(services, caller, job)
    if body.command:
        check_command(body.command)
    after = {"node": body.node, "command": body.command}
    action = actor.audit_action("job.shell", job.id, after=after)
    terminal = NewTerminal(body.terminal, body.columns, body.rows)
    made = services.node_commands.request(
        job, body.node, body.command, MAX_SHELL_S, action, terminal=terminal
    )
    return command_view(services, job, made)


@router.post("/{shell_id}/write", response_model=StreamOut)
def write_shell(
    job: TheJob, shell_id: str, body: ShellWriteIn, services: TheServices, caller: TheCaller
) -> StreamOut:
    """Write input to a shell, change the size of its terminal, or end it.

    A repeated request adds nothing.
    """
    check_command_access(services, caller, job)
    try:
        data = decode_bytes(body.data)
    except ValueError as error:
        raise BadRequest(f"data: {error}; encode the input") from error
    size = (body.columns, body.rows) if body.columns and body.rows else None
    change = TerminalChange(body.at, data, size, closed=body.close)
    return StreamOut(next=services.node_shells.write(job.id, shell_id, change))


@router.post("/{shell_id}/read", response_model=ShellReadOut)
async def read_shell(
    job: TheJob,
    shell_id: str,
    body: ShellReadIn,
    request: Request,
    *,
    services: TheServices,
    caller: TheCaller,
) -> ShellReadOut:
    """Wait for output of a shell, or its end; answered without any after 10 s.

    Output before `at` is dropped, which makes room for more.
    """
    check_command_access(services, caller, job)

    def has_more() -> bool:
        found = services.node_shells.position(job.id, shell_id)
        return found.output_end > body.at or found.ended_at is not None

    def answer() -> ShellReadOut:
        found = services.node_commands.find(
            job.id, shell_id
        )  # First: all output is before its end.
        at, data = services.node_shells.read(job.id, shell_id, body.at)
        state, detail = found.seen(job, services.clock.now())
        return ShellReadOut(
            state=state,
            exit_code=found.exit_code,
            detail=detail,
            at=at,
            data=encode_bytes(data),
        )

    # Before it waits, as what was read has to make room, and its node has to see this client.
    first = await asyncio.to_thread(answer)
    if first.data or first.state == "ended":
        return first
    await _wait(has_more, request, services)
    return await asyncio.to_thread(answer)


@workers_router.post("/{shell_id}/input", response_model=ShellInputOut)
async def shell_input(
    job_id: str, shell_id: str, body: ShellInputIn, request: Request, services: TheServices
) -> ShellInputOut:
    """Wait for input of a shell, or another size; answered without any after 10 s."""
    check_commands_enabled(services)

    def has_news(found: ShellPosition) -> bool:
        has_size = (found.columns, found.rows) != (body.columns, body.rows)
        return found.input_end > body.at or has_size or found.is_over

    streams = services.node_shells
    await _wait(
        lambda: has_news(streams.position(job_id, shell_id, body.runner)), request, services
    )
    taken = await asyncio.to_thread(streams.take_input, job_id, shell_id, body.runner, body.at)
    return ShellInputOut(
        data=encode_bytes(taken.data),
        columns=taken.columns,
        rows=taken.rows,
        closed=taken.closed,
        silent_s=taken.silent_s,
    )


@workers_router.post("/{shell_id}/output", response_model=StreamOut)
async def add_shell_output(
    job_id: str, shell_id: str, body: ShellOutputIn, request: Request, services: TheServices
) -> StreamOut:
    """Add output of a shell; waits for room, at most 10 s."""
    try:
        data = decode_bytes(body.data)
    except ValueError as error:
        raise BadReport(f"output of shell {shell_id}: {error}") from error
    streams = services.node_shells

    def add() -> int:
        return streams.add_output(job_id, shell_id, body.runner, body.at, data)

    taken = await asyncio.to_thread(add)
    if taken == body.at and data:
        await _wait(lambda: streams.position(job_id, shell_id).has_room, request, services)
        taken = await asyncio.to_thread(add)
    return StreamOut(next=taken)


async def _wait(is_due: Callable[[], bool], request: Request, services: Services) -> None:
    """Hold a request until `is_due`, or for some seconds."""
    until_s = time.monotonic() + HOLD_S
    while not await asyncio.to_thread(is_due):
        ended = time.monotonic() > until_s or services.stopping.is_set()
        if ended or await request.is_disconnected():
            return
        await asyncio.sleep(POLL_S)
