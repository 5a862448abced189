"""Limits on the command line: an option for each, the same with all commands that take them.

The commands that submit a job once more.

Commands that say how a job is to go on: pause, resume, limits.

Removal of ended jobs.
"""

from __future__ import annotations

import inspect
import secrets
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Final, TypeAlias

import typer

from holdfast.api.schemas.jobs import JobOut, LimitsOut, RemovalOut
from holdfast.cli import output
from holdfast.cli.jobs import Envs, Force, Secrets, connect, envs_of, secret_of
from holdfast.cli.options import JobId
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

Changes: TypeAlias = dict[str, Any]
"""Limits that were named, as the API takes them."""


def _option(name: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002 - as typer calls it
    return Annotated[str | None, typer.Option(name, help=help, metavar=metavar)]


AWAY: Final = "none"
"""Takes a limit away."""
WHOLE: Final = frozenset({"max_failures", "max_fruitless"})
"""Limits that are numbers, and neither sums nor times."""
OPTIONS: Final = {
    "max_cost_usd": _option("--max-cost", "What its nodes may cost in all.", "USD"),
    "max_hourly_cost_usd": _option("--max-hourly-cost", "What they may cost in an hour.", "USD"),
    "deadline": _option("--deadline", "When it has to be over, such as 48h after its submission."),
    "max_duration": _option("--max-duration", "How long it may have nodes, such as 72h."),
    "max_wait": _option("--max-wait", "How long it may be without nodes at a stretch."),
    "max_failures": _option("--max-failures", "How often the program may fail.", "N"),
    "max_fruitless": _option("--max-fruitless", "Placements that may come no further.", "N"),
    "max_stall": _option("--max-stall", "How long no step may be made; from the next launch on."),
}


def with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each limit; what was named of them it gets as `limits`.

    Typer reads the options of a command from its signature, and knows none that are made of others.
    """
    signature = inspect.signature(command, eval_str=True)
    named = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(n, named, default=None, annotation=o) for n, o in OPTIONS.items()]
    parameters = list(signature.parameters.values())
    place = list(signature.parameters).index("limits")

    @wraps(command)
    def taking(*args: Any, **given: Any) -> None:
        limits = _limit_changes({name: given.pop(name) for name in OPTIONS})
        command(*args, limits=limits, **given)

    parameters[place : place + 1] = options
    taking.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    taking.__annotations__ = {each.name: each.annotation for each in parameters}
    del taking.__wrapped__  # Its own signature is what is meant.
    return taking


def _limit_changes(given: dict[str, str | None]) -> Changes:
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


Name = Annotated[str | None, typer.Option("--name", "-n", help="Name instead of the job's.")]


@with_limits
def clone(
    job_id: JobId,
    *,
    name: Name = None,
    env: Envs = None,
    secret: Secrets = None,
    limits: Changes,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job once more, with what is to be other; it begins where that one began."""
    changes = _job_changes(name, env, secret, limits, force=force)
    with connect() as client:
        job = client.clone(job_id, changes, idempotency_key=secrets.token_hex(16))
    _print_copy(job, as_json=as_json)


@with_limits
def retry(
    job_id: JobId,
    *,
    name: Name = None,
    env: Envs = None,
    secret: Secrets = None,
    limits: Changes,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job that has ended without success once more; the new one goes on from its newest checkpoint."""
    changes = _job_changes(name, env, secret, limits, force=force)
    with connect() as client:
        job = client.retry(job_id, changes, idempotency_key=secrets.token_hex(16))
        step = client.job(job_id).last_checkpoint_step
    _print_copy(job, f", which goes on from step {step:,} of job {job_id}", as_json=as_json)


def _print_copy(job: JobOut, more: str = "", *, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
    else:
        output.console.print(f'Submitted job {job.id} "{job.name}"{more}', markup=False)


def _job_changes(
    name: str | None,
    env: list[str] | None,
    secret: list[str] | None,
    limits: Changes,
    *,
    force: bool,
) -> dict[str, Any]:
    """What is to be other in the new job, as the API takes it."""
    secrets_given = dict(map(secret_of, secret or []))
    given = {"name": name, "env": envs_of(env), "secrets": secrets_given, "limits": limits}
    return {word: value for word, value in {**given, "force": force}.items() if value}


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
    _print_job(job, as_json)


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
    _print_job(job, as_json)


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
        output.echo(
            "max_stall reaches the program with its next launch; what runs keeps the old one"
        )


def _rows(limits: LimitsOut) -> list[tuple[str, str]]:
    told = limits.model_dump()
    return [(name, "no limit" if value is None else str(value)) for name, value in told.items()]


def _print_job(job: JobOut, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
    else:
        told = f": {job.detail}" if job.detail else ""
        output.console.print(f"job {job.id} is {job.state}{told}", markup=False)


def rm(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of ended jobs.")],
    *,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Remove their checkpoints from the store as well.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove ended jobs with their events, metrics and logs; their costs stay in all sums."""
    if not yes:
        _ask(job_ids, checkpoints=checkpoints)
    with Client.from_settings(read_settings()) as client:
        removed = [client.remove(job_id, checkpoints=checkpoints) for job_id in job_ids]
    if as_json:
        output.print_json(removed)
        return
    for removal in removed:
        output.console.print(_sentence(removal), markup=False)


def _ask(job_ids: list[str], *, checkpoints: bool) -> None:
    if not sys.stdin.isatty():
        raise BadRequest("nothing was removed, as it cannot be undone; add --yes if you mean it")
    what = "with their checkpoints" if checkpoints else "and keep their checkpoints"
    typer.confirm(f"Remove {', '.join(job_ids)} {what}? This cannot be undone.", abort=True)


def _sentence(removal: RemovalOut) -> str:
    sentence = f"job {removal.job_id} is removed"
    if removal.checkpoints and removal.removes_checkpoints:
        sentence += f", its checkpoints in {removal.checkpoints} " + (
            "as well" if removal.done_at else "before long"
        )
    elif removal.checkpoints:
        sentence += f"; its checkpoints stay in {removal.checkpoints}"
    return sentence + (f" (files are left: {removal.trouble})" if removal.trouble else "")
