"""The command `exec`: runs a program on a node of a job, and exits like it."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Final

import typer
from holdfast_worker.protocol.node_commands import decode_bytes
from pydantic import ValidationError

from holdfast.api.schemas.commands import CommandIn
from holdfast.cli import output
from holdfast.cli.planning.options import duration_s
from holdfast.cli.usage.job_argument import JobId
from holdfast.client import Client
from holdfast.client.connection import RETRY_PAUSES_S
from holdfast.errors import NotPossibleNow
from holdfast.settings import read_settings

POLL_S: Final = 0.5
"""Seconds between two requests for output. A lower value makes more requests; a higher value delays it."""

Words = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="The program and its arguments.")
]
NodeNumber = Annotated[int, typer.Option("--node", min=0, help="Number of the node.")]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="Time after which it is ended, at most 1h.")
]


def execute(
    job_id: JobId, command: Words, *, node: NodeNumber = 0, timeout: Timeout = "60s"
) -> None:
    """Run a program on a node of a job, and exit with its code."""
    try:
        asked = CommandIn(command=command, node=node, timeout_s=duration_s("--timeout", timeout))
    except ValidationError as error:
        raise output.refused(error) from error
    with Client.from_settings(read_settings(), retry_pauses_s=RETRY_PAUSES_S) as client:
        found = client.jobs.execute(job_id, asked)
        read = [0, 0]
        try:
            while True:
                for at, (text, target) in enumerate(
                    ((found.stdout, sys.stdout), (found.stderr, sys.stderr))
                ):
                    data = decode_bytes(text)
                    target.buffer.write(data)
                    target.flush()
                    read[at] += len(data)
                if found.state == "ended":
                    break
                time.sleep(POLL_S)
                found = client.jobs.command(job_id, found.id, *read)
        except KeyboardInterrupt:
            output.echo(f"\nthe command continues on the node until its end, at most {timeout}")
            raise
    if found.exit_code is None:
        raise NotPossibleNow(found.detail)
    if found.detail:
        output.echo(f"note: {found.detail}")
    raise typer.Exit(found.exit_code)
