"""Commands on the nodes of jobs: users request them, the wrappers of nodes run them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import Query, Request
from holdfast_worker.protocol.node_commands import (
    MAX_ARGUMENT_CHARS,
    NEXT_COMMAND_S,
    CommandOutput,
    decode_bytes,
    encode_bytes,
)

from holdfast.api.auth.authentication import TheActor, TheCaller
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.commands import (
    CommandIn,
    CommandOut,
    CommandOutputIn,
    CommandStartIn,
    CommandStartOut,
    NextCommandIn,
    NextCommandOut,
)
from holdfast.api.schemas.workers import MAX_SEQ
from holdfast.domain.access.permissions import Caller
from holdfast.domain.jobs.job import Job
from holdfast.errors import BadReport, BadRequest, Forbidden
from holdfast.services import Services
from holdfast.store.nodes.commands import RequestedCommand

router = Router(prefix="/v1/jobs/{job_id}/commands", tags=["nodes"])
workers_router = Router(prefix="/v1/jobs/{job_id}/commands", tags=["workers"])

POLL_S: Final = 0.5
"""Seconds between two looks at waiting commands. A lower value adds work for each waiting node; a higher value delays commands."""

Offset = Annotated[
    int, Query(ge=0, le=MAX_SEQ, description="Bytes that the client has read before.")
]


@router.post("", status_code=201, response_model=CommandOut)
def request_command(
    job: TheJob, body: CommandIn, services: TheServices, caller: TheCaller, actor: TheActor
) -> CommandOut:
    """Run a command on a node of a job, in the environment of its program.

    The command is recorded in the audit log. Its output is kept for an hour.
    """
    check_command_access(services, caller, job)
    check_command(body.command)
    after = {"node": body.node, "command": body.command, "timeout_s": body.timeout_s}
    action = actor.audit_action("job.execute", job.id, after=after)
    made = services.node_commands.request(job, body.node, body.command, body.timeout_s, action)
    return command_view(services, job, made)


@router.get("/{command_id}", response_model=CommandOut)
def read_command(
    job: TheJob,
    command_id: str,
    services: TheServices,
    caller: TheCaller,
    *,
    stdout_from: Offset = 0,
    stderr_from: Offset = 0,
) -> CommandOut:
    """Read the state of a command, and its output from these bytes on."""
    check_command_access(services, caller, job)
    found = services.node_commands.find(job.id, command_id)
    return command_view(services, job, found, stdout_from, stderr_from)


@workers_router.post("/next", response_model=NextCommandOut)
async def next_command(
    job_id: str, body: NextCommandIn, request: Request, services: TheServices
) -> NextCommandOut:
    """Wait for a command for a node; answered without one after 50 s."""
    check_commands_enabled(services)
    board, until_s = services.node_commands, time.monotonic() + NEXT_COMMAND_S
    while time.monotonic() < until_s and not services.stopping.is_set():
        if board.is_stale:
            await asyncio.to_thread(board.refresh)
        if board.has_waiting(job_id, body.node):
            found = await asyncio.to_thread(
                board.next, job_id, body.node, body.attempt, terminals=body.terminals
            )
            if found:
                return NextCommandOut(
                    id=found.id,
                    command=[*found.command],
                    timeout_s=found.timeout_s,
                    terminal=found.terminal,
                )
        if await request.is_disconnected():
            break
        await asyncio.sleep(POLL_S)
    return NextCommandOut(id=None)


@workers_router.post("/{command_id}/start", response_model=CommandStartOut)
def start_command(
    job_id: str, command_id: str, body: CommandStartIn, services: TheServices
) -> CommandStartOut:
    """Announce that a wrapper runs a command, which one wrapper may do."""
    check_commands_enabled(services)
    return CommandStartOut(starts=services.node_commands.start(job_id, command_id, body.runner))


@workers_router.post("/{command_id}/output", status_code=204)
def add_command_output(
    job_id: str, command_id: str, body: CommandOutputIn, services: TheServices
) -> None:
    """Add output of a command, and its end."""
    try:
        output = CommandOutput(
            stdout=decode_bytes(body.stdout),
            stderr=decode_bytes(body.stderr),
            stdout_at=body.stdout_at,
            stderr_at=body.stderr_at,
            exit_code=body.exit_code,
            detail=body.detail,
        )
    except ValueError as error:
        raise BadReport(f"output of command {command_id}: {error}") from error
    services.node_commands.add_output(job_id, command_id, body.runner, output)


def check_command(words: Sequence[str]) -> None:
    """Check a program and its arguments.

    Raises:
        BadRequest: they cannot be passed to a program.
    """
    if any("\0" in word for word in words) or not words[0]:
        raise BadRequest("command: contains a NUL character, or names no program; remove it")
    if sum(map(len, words)) > MAX_ARGUMENT_CHARS:
        raise BadRequest(
            f"command: has more than {MAX_ARGUMENT_CHARS} characters; put it into a file of the job"
        )


def check_commands_enabled(services: Services) -> None:
    """Check that this service runs commands on nodes.

    Raises:
        Forbidden: it does not.
    """
    if not services.runs_node_commands:
        raise Forbidden(
            "this service runs no commands on nodes; HOLDFAST_NODE_COMMANDS=true allows them"
        )


def check_command_access(services: Services, caller: Caller, job: Job) -> None:
    """Check that a caller may run commands on the nodes of a job.

    Raises:
        Forbidden: the caller may not, or this service runs none.
    """
    check_commands_enabled(services)
    if not caller.may_execute(job.project, job.owner):
        raise Forbidden(
            f"no commands for job {job.id}: it belongs to another user; its owner and admins of its project may run them"
        )


def command_view(
    services: Services,
    job: Job,
    found: RequestedCommand,
    stdout_from: int = 0,
    stderr_from: int = 0,
) -> CommandOut:
    """A command as its user sees it."""
    state, detail = found.seen(job, services.clock.now())
    return CommandOut(
        id=found.id,
        job_id=job.id,
        node=found.node,
        attempt=found.attempt,
        state=state,
        exit_code=found.exit_code,
        detail=detail,
        stdout=encode_bytes(found.stdout[stdout_from:]),
        stderr=encode_bytes(found.stderr[stderr_from:]),
    )
