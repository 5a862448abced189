"""Commands that copy, retry, pause, resume, limit and remove jobs, and unknown launches."""

from __future__ import annotations

import secrets
import sys
from typing import Annotated, Any, TypeAlias

import typer

from holdfast.api.schemas.jobs import JobOut, LimitsOut, RemovalOut
from holdfast.cli import output
from holdfast.cli.jobs import Envs, Force, Secrets, connect, envs_of, secret_of
from holdfast.cli.output import AsJson
from holdfast.cli.usage.bulk_actions import act_on_selection, is_selection
from holdfast.cli.usage.job_argument import JobId, JobIds, MaybeJobId
from holdfast.cli.usage.job_filters import ChosenJobs, chosen_jobs
from holdfast.cli.usage.resume_options import NodeOptions, node_options, print_resume_preview
from holdfast.cli.usage.shared_options import Limits, all_limits, with_options
from holdfast.client import Client
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

Changes: TypeAlias = dict[str, Any]
"""Changes in a copy of a job, as the API accepts them."""
Name = Annotated[
    str | None, typer.Option("--name", "-n", help="Name instead of the original job's.")
]


@with_options("limits", all_limits)
def _job_changes(
    *,
    name: Name = None,
    env: Envs = None,
    secret: Secrets = None,
    limits: Limits,
    force: Force = False,
) -> Changes:
    """Collect the changes in a copy of a job as the API accepts them."""
    secrets_given = dict(map(secret_of, secret or []))
    given = {"name": name, "env": envs_of(env), "secrets": secrets_given, "limits": limits}
    return {word: value for word, value in {**given, "force": force}.items() if value}


@with_options("changes", _job_changes)
def clone(job_id: JobId, *, changes: Changes, as_json: AsJson = False) -> None:
    """Submit a copy of a job with changes; it starts where the original started."""
    with connect() as client:
        job = client.jobs.clone(job_id, changes, idempotency_key=secrets.token_hex(16))
    _print_copy(job, as_json=as_json)


@with_options("changes", _job_changes)
@with_options("chosen", chosen_jobs)
def retry(
    job_id: MaybeJobId = None, *, chosen: ChosenJobs, changes: Changes, as_json: AsJson = False
) -> None:
    """Submit a failed or cancelled job again from its newest checkpoint, or a selection."""
    if is_selection(job_id, chosen):
        if changes:
            raise BadRequest("a copy can differ from one job at a time; name the job")
        act_on_selection("retry", chosen, as_json=as_json)
        return
    assert job_id is not None
    with connect() as client:
        job = client.jobs.retry(job_id, changes, idempotency_key=secrets.token_hex(16))
        step = client.jobs.get(job_id).last_checkpoint_step
    _print_copy(job, f", which resumes from step {step:,} of job {job_id}", as_json=as_json)


def _print_copy(job: JobOut, more: str = "", *, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
    else:
        output.console.print(f'Submitted job {job.id} "{job.name}"{more}', markup=False)


@with_options("chosen", chosen_jobs)
def pause(
    job_id: MaybeJobId = None,
    *,
    chosen: ChosenJobs,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason, shown in the job's history.")
    ] = "paused on request",
    as_json: AsJson = False,
) -> None:
    """Pause a job, or those that options select: save, and release the nodes until a resume."""
    if is_selection(job_id, chosen):
        act_on_selection("pause", chosen, reason=reason, as_json=as_json)
        return
    assert job_id is not None
    with Client.from_settings(read_settings()) as client:
        job = client.jobs.pause(job_id, reason)
    _print_job(job, as_json)


@with_options("limits", all_limits)
@with_options("nodes", node_options)
@with_options("chosen", chosen_jobs)
def resume(
    job_id: MaybeJobId = None,
    *,
    chosen: ChosenJobs,
    nodes: NodeOptions,
    limits: Limits,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason, shown in the job's history.")
    ] = "resumed on request",
    as_json: AsJson = False,
) -> None:
    """Resume a paused job, with changed limits or on other nodes if given, or a selection."""
    if is_selection(job_id, chosen, has_preview=True):
        if limits or nodes:
            raise BadRequest("limits and nodes change for one job at a time; name the job")
        act_on_selection("resume", chosen, reason=reason, as_json=as_json)
        return
    assert job_id is not None
    with Client.from_settings(read_settings()) as client:
        if chosen.dry_run:
            preview = client.jobs.preview_resume(job_id, limits, nodes)
            output.print_json(preview) if as_json else print_resume_preview(preview)
            return
        job = client.jobs.resume(job_id, reason, limits, nodes)
    _print_job(job, as_json)


@with_options("limits", all_limits)
def limits(
    job_id: JobId,
    *,
    limits: Limits,
    as_json: AsJson = False,
) -> None:
    """Show the limits of a job, or change them; `none` removes a limit."""
    with Client.from_settings(read_settings()) as client:
        job = client.jobs.set_limits(job_id, limits) if limits else client.jobs.get(job_id)
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
        removed = [client.jobs.remove(job_id, checkpoints=checkpoints) for job_id in job_ids]
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
        every = client.service.launchers()
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
        launcher = client.service.stop_launch(key)
    output.echo(f"{launcher.engine} is stopping {key}")
