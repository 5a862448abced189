"""Commands that say how a job is to go on: pause, resume, limits."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from holdfast.api.control_schemas import LimitsOut
from holdfast.api.schemas import JobOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]
MaxCost = Annotated[
    str | None,
    typer.Option("--max-cost", metavar="USD", help="What its nodes may cost in all."),
]
MaxHourlyCost = Annotated[
    str | None,
    typer.Option("--max-hourly-cost", metavar="USD", help="What they may cost in an hour."),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", help="When it has to be over, such as 48h after its submission."),
]
MaxDuration = Annotated[
    str | None, typer.Option("--max-duration", help="How long it may have nodes, such as 72h.")
]
MaxWait = Annotated[
    str | None,
    typer.Option("--max-wait", help="How long it may be without nodes at a stretch."),
]
MaxFailures = Annotated[
    str | None,
    typer.Option("--max-failures", metavar="N", help="How often the program may fail."),
]
MaxFruitless = Annotated[
    str | None,
    typer.Option("--max-fruitless", metavar="N", help="Placements that may come no further."),
]
MaxStall = Annotated[
    str | None,
    typer.Option("--max-stall", help="How long no step may be made; from the next launch on."),
]
AWAY: Final = "none"
"""Takes a limit away."""
WHOLE: Final = frozenset({"max_failures", "max_fruitless"})
"""Limits that are numbers, and neither sums nor times."""


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


def resume(
    job_id: JobId,
    *,
    max_cost: MaxCost = None,
    max_hourly_cost: MaxHourlyCost = None,
    deadline: Deadline = None,
    max_duration: MaxDuration = None,
    max_wait: MaxWait = None,
    max_failures: MaxFailures = None,
    max_fruitless: MaxFruitless = None,
    max_stall: MaxStall = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Why, for whoever reads its history.")
    ] = "resumed on request",
    as_json: AsJson = False,
) -> None:
    """Let a paused job go on from its newest checkpoint, under other limits if some are given."""
    changes = _changes(
        max_cost_usd=max_cost,
        max_hourly_cost_usd=max_hourly_cost,
        deadline=deadline,
        max_duration=max_duration,
        max_wait=max_wait,
        max_failures=max_failures,
        max_fruitless=max_fruitless,
        max_stall=max_stall,
    )
    with Client.from_settings(read_settings()) as client:
        job = client.resume(job_id, reason, changes)
    _tell(job, as_json)


def limits(
    job_id: JobId,
    *,
    max_cost: MaxCost = None,
    max_hourly_cost: MaxHourlyCost = None,
    deadline: Deadline = None,
    max_duration: MaxDuration = None,
    max_wait: MaxWait = None,
    max_failures: MaxFailures = None,
    max_fruitless: MaxFruitless = None,
    max_stall: MaxStall = None,
    as_json: AsJson = False,
) -> None:
    """Show where a job is given up or paused, after giving it other limits if some are named; none takes one away."""
    changes = _changes(
        max_cost_usd=max_cost,
        max_hourly_cost_usd=max_hourly_cost,
        deadline=deadline,
        max_duration=max_duration,
        max_wait=max_wait,
        max_failures=max_failures,
        max_fruitless=max_fruitless,
        max_stall=max_stall,
    )
    with Client.from_settings(read_settings()) as client:
        job = client.limits(job_id, changes) if changes else client.job(job_id)
    if as_json:
        output.print_json(job.limits)
        return
    for name, told in _rows(job.limits):
        output.console.print(f"  {name:<20} {told}", markup=False)
    if "max_stall" in changes:
        output.say(
            "max_stall reaches the program with its next launch; what runs keeps the old one"
        )


def _rows(limits: LimitsOut) -> list[tuple[str, str]]:
    told = limits.model_dump()
    return [(name, "no limit" if value is None else str(value)) for name, value in told.items()]


def _changes(**given: str | None) -> dict[str, Any]:
    """What was named, as the API takes it."""
    named = {name: value for name, value in given.items() if value is not None}
    return {name: None if value == AWAY else _typed(name, value) for name, value in named.items()}


def _typed(name: str, value: str) -> str | int:
    if name not in WHOLE:
        return value
    try:
        return int(value)
    except ValueError as error:
        option = f"--{name.replace('_', '-')}"
        raise BadRequest(f"{option} {value}: write a whole number, or none") from error


def _tell(job: JobOut, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
    else:
        told = f": {job.detail}" if job.detail else ""
        output.console.print(f"job {job.id} is {job.state}{told}", markup=False)
