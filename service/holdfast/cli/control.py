"""Commands that say how a job is to go on: pause, resume, limits."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.api.control_schemas import LimitsOut
from holdfast.api.schemas import JobOut
from holdfast.cli import output
from holdfast.cli.limits import Changes, with_limits
from holdfast.cli.options import JobId
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.settings import read_settings


def pause(
    job_id: JobId,
    reason: Annotated[
        str, typer.Option("--reason", help="Why, for whoever reads its history.")
    ] = "paused on request",
    as_json: AsJson = False,
) -> None:
    """Let a job save its work, give its nodes back, and wait until somebody resumes it."""
    with Client.from_settings(read_settings()) as client:
        job = client.pause(job_id, reason)
    _tell(job, as_json)


@with_limits
def resume(
    job_id: JobId,
    *,
    limits: Changes,
    reason: Annotated[
        str, typer.Option("--reason", help="Why, for whoever reads its history.")
    ] = "resumed on request",
    as_json: AsJson = False,
) -> None:
    """Let a paused job go on from its newest checkpoint, under other limits if some are given."""
    with Client.from_settings(read_settings()) as client:
        job = client.resume(job_id, reason, limits)
    _tell(job, as_json)


@with_limits
def limits(
    job_id: JobId,
    *,
    limits: Changes,
    as_json: AsJson = False,
) -> None:
    """Show where a job is given up or paused, after giving it other limits if some are named; none takes one away."""
    with Client.from_settings(read_settings()) as client:
        job = client.limits(job_id, limits) if limits else client.job(job_id)
    if as_json:
        output.print_json(job.limits)
        return
    for name, told in _rows(job.limits):
        output.console.print(f"  {name:<20} {told}", markup=False)
    if "max_stall" in limits:
        output.say(
            "max_stall reaches the program with its next launch; what runs keeps the old one"
        )


def _rows(limits: LimitsOut) -> list[tuple[str, str]]:
    told = limits.model_dump()
    return [(name, "no limit" if value is None else str(value)) for name, value in told.items()]


def _tell(job: JobOut, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
    else:
        told = f": {job.detail}" if job.detail else ""
        output.console.print(f"job {job.id} is {job.state}{told}", markup=False)
