"""The command that puts two jobs side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client_evidence import EvidenceClient
from holdfast.settings import read_settings


def diff(
    before: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job that is known.")],
    after: Annotated[str, typer.Argument(metavar="OTHER", help="Id of the one to explain.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show what is other in one run than in another, what explains most first, and how much slower it is."""
    with Client.from_settings(read_settings()) as client:
        told = EvidenceClient(client).diff(before, after)
    if as_json:
        output.print_json(told)
        return
    old, new = told.steps_per_hour_before, told.steps_per_hour_after
    if old and new:
        change = abs(new / old - 1)
        word = "slower" if new < old else "quicker"
        speed = (
            f"{after} is {change:.0%} {word}: {old:,.0f} -> {new:,.0f} steps an hour of useful time"
        )
        output.console.print(speed, markup=False)
    if not told.differences:
        output.say("nothing is other in what their workers told")
        return
    table = output.table("KIND", "WHAT", "BEFORE", "AFTER")
    for one in told.differences:
        table.add_row(one.kind, one.key, output.brief(one.before), output.brief(one.after))
    output.print_table(table)
