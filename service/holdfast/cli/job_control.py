"""Commands that copy, retry, pause, resume, limit and remove jobs, and manage unknown launches."""

from __future__ import annotations

import inspect
import secrets
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Final, TypeAlias

import typer

from holdfast.api.schemas.jobs import JobOut, LimitsOut, RemovalOut
from holdfast.api.schemas.service import LauncherOut
from holdfast.cli import output
from holdfast.cli.job_argument import JobId, JobIds
from holdfast.cli.jobs import Envs, Force, Secrets, connect, envs_of, secret_of
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

Changes: TypeAlias = dict[str, Any]
"""The limits given on the command line, as the API accepts them."""


def _option(name: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002 - as typer calls it
    return Annotated[str | None, typer.Option(name, help=help, metavar=metavar)]


NO_LIMIT: Final = "none"
"""The value that removes a limit."""
INTEGER_LIMITS: Final = frozenset({"max_failures", "max_fruitless"})
"""Limits that are plain numbers, neither amounts nor durations."""
OPTIONS: Final = {
    "max_cost_usd": _option("--max-cost", "Maximum total cost of the nodes.", "USD"),
    "max_hourly_cost_usd": _option(
        "--max-hourly-cost", "Maximum cost of the nodes per hour.", "USD"
    ),
    "deadline": _option("--deadline", "Deadline, such as 48h after the submission."),
    "max_duration": _option("--max-duration", "Maximum time with nodes, such as 72h."),
    "max_wait": _option("--max-wait", "Maximum uninterrupted time without nodes."),
    "max_failures": _option("--max-failures", "Maximum number of failures of the program.", "N"),
    "max_fruitless": _option("--max-fruitless", "Maximum attempts without progress.", "N"),
    "max_stall": _option(
        "--max-stall", "Maximum time without a step; takes effect with the next launch."
    ),
}


def with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """Add one option for each limit to a command, which receives the given ones as `limits`.

    Typer reads options from the signature and cannot build them from a list.
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
    del taking.__wrapped__  # Typer must read the extended signature.
    return taking


def _limit_changes(given: dict[str, str | None]) -> Changes:
    named = {name: value for name, value in given.items() if value is not None}
    return {
        name: None if value == NO_LIMIT else _parse_limit(name, value)
        for name, value in named.items()
    }


def _parse_limit(name: str, value: str) -> str | int:
    if name not in INTEGER_LIMITS:
        return value
    try:
        return int(value)
    except ValueError as error:
        option = f"--{name.replace('_', '-')}"
        raise BadRequest(f"{option} {value}: write a whole number, or none") from error


Name = Annotated[
    str | None, typer.Option("--name", "-n", help="Name instead of the original job's.")
]


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
    """Submit a copy of a job with changes; it starts where the original started."""
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
    """Submit a job that failed or was cancelled again, from its newest checkpoint."""
    changes = _job_changes(name, env, secret, limits, force=force)
    with connect() as client:
        job = client.retry(job_id, changes, idempotency_key=secrets.token_hex(16))
        step = client.job(job_id).last_checkpoint_step
    _print_copy(job, f", which resumes from step {step:,} of job {job_id}", as_json=as_json)


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
    """Collect the changes for the new job as the API accepts them."""
    secrets_given = dict(map(secret_of, secret or []))
    given = {"name": name, "env": envs_of(env), "secrets": secrets_given, "limits": limits}
    return {word: value for word, value in {**given, "force": force}.items() if value}


def pause(
    job_id: JobId,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason, shown in the job's history.")
    ] = "paused on request",
    as_json: AsJson = False,
) -> None:
    """Pause a job: save a checkpoint and release its nodes until it is resumed."""
    with Client.from_settings(read_settings()) as client:
        job = client.pause(job_id, reason)
    _print_job(job, as_json)


@with_limits
def resume(
    job_id: JobId,
    *,
    limits: Changes,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason, shown in the job's history.")
    ] = "resumed on request",
    as_json: AsJson = False,
) -> None:
    """Resume a paused job from its newest checkpoint, with changed limits if given."""
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
    """Show the limits of a job, or change them; `none` removes a limit."""
    with Client.from_settings(read_settings()) as client:
        job = client.limits(job_id, limits) if limits else client.job(job_id)
    if as_json:
        output.print_json(job.limits)
        return
    for name, text in _rows(job.limits):
        output.console.print(f"  {name:<20} {text}", markup=False)
    if "max_stall" in limits:
        output.echo(
            "max_stall takes effect with the next launch; the running one keeps the old value"
        )


def _rows(limits: LimitsOut) -> list[tuple[str, str]]:
    text = limits.model_dump()
    return [(name, "no limit" if value is None else str(value)) for name, value in text.items()]


def _print_job(job: JobOut, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
    else:
        text = f": {job.detail}" if job.detail else ""
        output.console.print(f"job {job.id} is {job.state}{text}", markup=False)


def rm(
    job_ids: JobIds,
    *,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Also delete their checkpoints from the store.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove ended jobs with their events, metrics and logs; all totals keep their costs."""
    if not yes:
        _confirm(job_ids, checkpoints=checkpoints)
    with Client.from_settings(read_settings()) as client:
        removed = [client.remove(job_id, checkpoints=checkpoints) for job_id in job_ids]
    if as_json:
        output.print_json(removed)
        return
    for removal in removed:
        output.console.print(_sentence(removal), markup=False)


def _confirm(job_ids: list[str], *, checkpoints: bool) -> None:
    if not sys.stdin.isatty():
        raise BadRequest("no job was removed, as this cannot be undone; confirm with --yes")
    what = "and delete their checkpoints" if checkpoints else "and keep their checkpoints"
    typer.confirm(f"Remove {', '.join(job_ids)} {what}? This cannot be undone.", abort=True)


def _sentence(removal: RemovalOut) -> str:
    sentence = f"removed job {removal.job_id}"
    if removal.checkpoints and removal.removes_checkpoints:
        sentence += f"; its checkpoints in {removal.checkpoints} " + (
            "are deleted" if removal.done_at else "will be deleted soon"
        )
    elif removal.checkpoints:
        sentence += f"; its checkpoints are kept in {removal.checkpoints}"
    return sentence + (
        f" (some files could not be deleted: {removal.trouble})" if removal.trouble else ""
    )


launches_app = typer.Typer(
    help="Manage launches that are missing from the service's database.", no_args_is_help=True
)


@launches_app.command("list")
def list_launches(as_json: AsJson = False) -> None:
    """List launches that run at a launcher but are missing from the database."""
    with Client.from_settings(read_settings()) as client:
        every = client.launchers()
    launchers = [item for item in every if item.strangers]
    if as_json:
        output.print_json(launchers)
        return
    table = output.table("LAUNCHER", "RUNNING")
    for launcher in launchers:
        for what in launcher.strangers:
            table.add_row(launcher.engine, what)
    output.print_table(table)
    keys = [key for launcher in launchers for key in launcher.strange_launches]
    unsearched = [item.engine for item in every if item.swept is False]
    if unsearched:
        output.echo(f"not searched yet: {', '.join(unsearched)}; run this again in a minute")
    if keys:
        output.echo(f"launch keys: {', '.join(keys)}")
    elif not unsearched:
        output.echo("every launch is in the database")


@launches_app.command("stop")
def stop_launch(
    key: Annotated[
        str, typer.Argument(help="Key of the launch, as printed by `holdfast launches list`.")
    ],
) -> None:
    """Stop a launch that is missing from the database; it may save its work first."""
    with Client.from_settings(read_settings()) as client:
        launcher = client.get(LauncherOut, "POST", f"/v1/launches/{key}/stop")
    output.echo(f"{launcher.engine} is stopping {key}")
