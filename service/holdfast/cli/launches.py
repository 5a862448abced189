"""Commands about launches that run and are not in the service's database."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.api.schemas.service import LauncherOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.settings import read_settings

app = typer.Typer(
    help="Manage launches that are not in the service's database.", no_args_is_help=True
)


@app.command("list")
def list_launches(as_json: AsJson = False) -> None:
    """List what runs at launchers for launches that are not in the database."""
    with Client.from_settings(read_settings()) as client:
        every = client.launchers()
    launchers = [item for item in every if item.strangers]
    if as_json:
        output.print_json(launchers)
        return
    table = output.table("LAUNCHER", "WHAT RUNS")
    for launcher in launchers:
        for what in launcher.strangers:
            table.add_row(launcher.engine, what)
    output.print_table(table)
    keys = [key for launcher in launchers for key in launcher.strange_launches]
    unsearched = [item.engine for item in every if item.swept is False]
    if unsearched:
        output.echo(f"not searched yet: {', '.join(unsearched)}; ask again in a minute")
    if keys:
        output.echo(f"launch keys: {', '.join(keys)}")
    elif not unsearched:
        output.echo("every launch is in the database")


@app.command()
def stop(
    key: Annotated[
        str, typer.Argument(help="Key of the launch, as `holdfast launches list` prints it.")
    ],
) -> None:
    """Stop a launch that is not in the database; it may save its work first."""
    with Client.from_settings(read_settings()) as client:
        launcher = client.get(LauncherOut, "POST", f"/v1/launches/{key}/stop")
    output.echo(f"{launcher.engine} stops {key}")
