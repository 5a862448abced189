"""Commands for sweeps: one job file with several values of its parameters."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from holdfast.api.schemas.sweeps import StopRuleIn, SweepDetailOut, SweepIn
from holdfast.cli import output
from holdfast.cli.code_upload import Upload, code_of
from holdfast.cli.jobs import Envs, File, Force, Name, Project, Secrets, connect, task_of
from holdfast.cli.output import AsJson, money
from holdfast.client.credentials import Credentials
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

Parallel = Annotated[
    int | None, typer.Option("--parallel", min=1, help="Jobs that may have nodes at once.")
]
MaxCost = Annotated[
    str | None,
    typer.Option("--max-cost", metavar="USD", help="Maximum cost of all jobs together."),
]
SweepId = Annotated[str, typer.Argument(metavar="SWEEP", help="Id of the sweep.")]


def sweep(
    file: File,
    *,
    param: Annotated[
        list[str],
        typer.Option(
            "--param",
            metavar="K=V,...",
            help="Values of a variable: 1e-4,3e-4 or 1..8; repeatable.",
        ),
    ],
    parallel: Parallel = None,
    max_cost: MaxCost = None,
    stop_metric: Annotated[
        str | None,
        typer.Option("--stop-metric", help="Stop jobs whose metric is worse than the median."),
    ] = None,
    stop_mode: Annotated[
        Literal["min", "max"], typer.Option("--stop-mode", help="Which values are better.")
    ] = "min",
    grace: Annotated[
        int, typer.Option("--grace", min=0, help="Steps before which no job is stopped.")
    ] = 0,
    name: Name = None,
    env: Envs = None,
    secret: Secrets = None,
    project: Project = None,
    force: Force = False,
    upload: Upload = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job for each combination of parameters, with a shared budget."""
    task = task_of(file, name, env, secret).model_copy(update={"force": force})
    task.project = project
    task.default_project = Credentials.read(read_settings().login_file).project
    stop = (
        StopRuleIn(metric=stop_metric, mode=stop_mode, grace_steps=grace) if stop_metric else None
    )
    with connect() as client:
        task.code = code_of(client, task.task, upload)
        given: dict[str, Any] = {"parallel": parallel, "max_cost_usd": max_cost, "stop": stop}
        given = {word: value for word, value in given.items() if value is not None}
        try:
            asked = SweepIn(
                task=task.model_dump(exclude_none=True), params=dict(map(_param, param)), **given
            )
        except ValidationError as error:
            raise output.refused(error) from error
        made = client.sweeps.submit(asked, secrets.token_hex(16))
    if as_json:
        output.print_json(made)
        return
    count = output.counted(made.job_count, "job")
    output.console.print(f'Submitted sweep {made.id} "{made.name}" of {count}', markup=False)
    output.echo(
        f"compare its jobs: holdfast sweeps show {made.id}; cancel them: holdfast cancel -l sweep={made.id}"
    )


def _param(text: str) -> tuple[str, list[str]]:
    name, is_set, values = text.partition("=")
    if not is_set:
        raise BadRequest(f"--param {text}: write NAME=VALUE,VALUE or NAME=1..8")
    return name, values.split(",")


sweeps_app = typer.Typer(help="Manage sweeps: list, compare and change them.", no_args_is_help=True)


@sweeps_app.command("list")
def list_sweeps(
    project: Annotated[
        str | None, typer.Option("--project", "-p", help="Only this project.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=200, help="Maximum number of sweeps.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """List sweeps, newest first."""
    with connect() as client:
        found = client.sweeps.newest(project, limit)
    if as_json:
        output.print_json(found)
        return
    if not found:
        output.echo("no sweeps; submit one with: holdfast sweep FILE --param K=V,V")
        return
    table = output.table("ID", "NAME", "JOBS", "STATES", "BUDGET", right=("JOBS",))
    for each in found:
        states = ", ".join(f"{count} {state}" for state, count in sorted(each.states.items()))
        budget = f"${each.max_cost_usd}" if each.max_cost_usd else "-"
        table.add_row(each.id, each.name, str(each.job_count), states, budget)
    output.print_table(table)


@sweeps_app.command("show")
def show_sweep(sweep_id: SweepId, as_json: AsJson = False) -> None:
    """Show a sweep, and compare its jobs."""
    with connect() as client:
        found = client.sweeps.show(sweep_id)
    if as_json:
        output.print_json(found)
    else:
        _print_sweep(found)


@sweeps_app.command("set")
def set_sweep(
    sweep_id: SweepId,
    *,
    max_cost: MaxCost = None,
    parallel: Parallel = None,
    as_json: AsJson = False,
) -> None:
    """Set the maximum cost of a sweep, or how many of its jobs run at once."""
    given = {"max_cost_usd": max_cost, "parallel": parallel}
    changes: dict[str, str | int | None] = {
        word: value for word, value in given.items() if value is not None
    }
    if not changes:
        raise BadRequest("name what changes: --max-cost or --parallel")
    if max_cost == "none":
        changes["max_cost_usd"] = None
    with connect() as client:
        found = client.sweeps.change(sweep_id, changes)
    if as_json:
        output.print_json(found)
    else:
        _print_sweep(found)


def _print_sweep(found: SweepDetailOut) -> None:
    budget = f" of ${found.max_cost_usd}" if found.max_cost_usd else ""
    turns = f", {found.parallel} at once" if found.parallel else ""
    output.console.print(
        f"{found.id}  {found.name}  {output.counted(found.job_count, 'job')}{turns}, paid {money(found.paid_micros)}{budget}",
        markup=False,
    )
    metric = [f"BEST {found.stop.metric}"] if found.stop else []
    numbers = ("STEP", "PAID", *metric)
    table = output.table("ID", "STATE", *found.params, "STEP", *metric, "PAID", right=numbers)
    for trial in found.trials:
        values = [trial.params.get(name, "-") for name in found.params]
        best = ["-" if trial.best is None else f"{trial.best:.6g}"] if metric else []
        state = output.state(trial.state)
        table.add_row(
            trial.job_id, state, *values, f"{trial.step:,}", *best, money(trial.paid_micros)
        )
    output.print_table(table)
