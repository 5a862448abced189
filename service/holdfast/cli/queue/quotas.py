"""Commands for quotas, for the queue of waiting jobs, and for priorities."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pydantic import ValidationError

from holdfast.api.schemas.queue import QuotaIn, QuotaOut
from holdfast.cli import output
from holdfast.cli.output import AsJson, money
from holdfast.cli.usage.job_argument import JobId
from holdfast.client import Client
from holdfast.domain.events.values import MAX_PRIORITY
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

app = typer.Typer(
    help="Manage quotas: what jobs may hold at once.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SERVICE = "service"
SCOPES = (SERVICE, "project", "user")
Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="service, project or user.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the project or user; none for the service.")
]
NO_NAME = ""


@app.command("list")
def list_quotas(as_json: AsJson = False) -> None:
    """List quotas with what is held of them."""
    with Client.from_settings(read_settings()) as client:
        quotas = client.queue.quotas()
    if as_json:
        output.print_json(quotas)
    elif not quotas:
        output.echo("no quotas; create one with: holdfast quota set user ada --gpus 16")
    else:
        _print(quotas)


@app.command("set")
def set_quota(
    scope: Scope,
    name: Name = NO_NAME,
    *,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=0, metavar="N", help="Jobs at once.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=0, metavar="N", help="Nodes at once.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=0, metavar="N", help="Accelerators at once.")
    ] = None,
    hourly_cost: Annotated[
        str | None,
        typer.Option("--hourly-cost", metavar="USD", help="US dollars per hour for all nodes."),
    ] = None,
    pause_for_priority: Annotated[
        bool,
        typer.Option(
            "--pause-for-priority",
            help="Of a project: pause its running spot jobs for waiting ones of a higher priority.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set the quota of a user, a project or the service; it replaces the previous one."""
    given: dict[str, Any] = {
        "jobs": jobs,
        "nodes": nodes,
        "gpus": gpus,
        "hourly_usd": hourly_cost,
        "may_pause_for_priority": pause_for_priority or None,
    }
    if all(value is None for value in given.values()):
        raise BadRequest(
            "name at least one of --jobs, --nodes, --gpus, --hourly-cost and --pause-for-priority"
        )
    try:
        quota_in = QuotaIn(**{word: value for word, value in given.items() if value is not None})
    except ValidationError as error:
        flaw = error.errors()[0]
        raise BadRequest(f"--{flaw['loc'][0]}: {flaw['msg']}") from error
    with Client.from_settings(read_settings()) as client:
        quota = client.queue.set_quota(*_key(scope, name), quota_in)
    if as_json:
        output.print_json(quota)
    else:
        _print([quota])


@app.command("unset")
def unset_quota(scope: Scope, name: Name = NO_NAME) -> None:
    """Remove a quota."""
    scope, name = _key(scope, name)
    with Client.from_settings(read_settings()) as client:
        client.queue.remove_quota(scope, name)
    output.echo(f"removed the quota of {'the service' if scope == SERVICE else f'{scope} {name}'}")


def queue(as_json: AsJson = False) -> None:
    """List the jobs that wait for room in quotas, in the order of admission."""
    with Client.from_settings(read_settings()) as client:
        found = client.queue.waiting()
    if as_json:
        output.print_json(found)
        return
    if not found.jobs:
        output.echo("no job waits in the queue")
        return
    table = output.table("#", "JOB", "OWNER", "PRIORITY", "GPUS", "WAITS FOR", right=("#", "GPUS"))
    for each in found.jobs:
        table.add_row(
            str(each.position),
            each.job_id,
            each.owner or "-",
            f"{each.priority}{' (urgent)' * each.is_urgent}",
            str(each.gpus),
            each.reason or "starts now",
        )
    output.print_table(table)
    for used in found.usage:
        who = used.owner or "jobs without an owner"
        output.echo(f"{who}: {used.gpu_hours:,.1f} GPU hours count for the fair share")


def priority(
    job_id: JobId,
    number: Annotated[
        int,
        typer.Argument(
            min=-MAX_PRIORITY,
            max=MAX_PRIORITY,
            metavar="PRIORITY",
            help="Higher ones are admitted first; 0 is the default.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Change the priority of a job in the queue."""
    with Client.from_settings(read_settings()) as client:
        job = client.queue.set_priority(job_id, number)
    if as_json:
        output.print_json(job)
    else:
        output.echo(f"job {job.id} has priority {job.priority}")


def _key(scope: str, name: str) -> tuple[str, str]:
    """The scope and name of a quota as written on the command line."""
    if scope not in SCOPES:
        raise BadRequest(f"{scope!r} cannot have a quota; write service, project or user")
    if scope == SERVICE and name != NO_NAME:
        raise BadRequest(f"the service has one quota; leave {name!r} out")
    if scope != SERVICE and name == NO_NAME:
        raise BadRequest(f"name the {scope} whose quota this is")
    return scope, name


def _print(quotas: list[QuotaOut]) -> None:
    right = ("JOBS", "NODES", "GPUS", "COST/H", "WAITING")
    table = output.table("SCOPE", *right, right=right)
    for each in quotas:
        table.add_row(
            each.scope if each.scope == SERVICE else f"{each.scope} {each.name}",
            _of(each.held_jobs, each.jobs),
            _of(each.held_nodes, each.nodes),
            _of(each.held_gpus, each.gpus),
            money(each.held_micros_per_hour)
            + (f" of {money(each.micros_per_hour)}" if each.micros_per_hour is not None else ""),
            str(each.waiting),
        )
    output.print_table(table)
    for each in quotas:
        if each.may_pause_for_priority:
            output.echo(
                f"project {each.name} pauses spot jobs for waiting ones of a higher priority"
            )


def _of(held: int, limit: int | None) -> str:
    return f"{held:,}" if limit is None else f"{held:,} of {limit:,}"
