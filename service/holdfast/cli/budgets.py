"""Commands about budgets: what projects and users may spend in a month."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.api.schemas.billing import BudgetIn, BudgetOut
from holdfast.cli import output
from holdfast.cli.output import AsJson, money
from holdfast.client import Client
from holdfast.client.billing import BudgetsClient
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

app = typer.Typer(
    help="What projects and users may spend in a month.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SCOPES = ("project", "user")
Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="project or user.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the project or the user.")]


@app.command("list")
def show(as_json: AsJson = False) -> None:
    """List budgets, with what is spent of each in this month."""
    with Client.from_settings(read_settings()) as client:
        budgets = BudgetsClient(client).budgets()
    if as_json:
        output.print_json(budgets)
    elif not budgets:
        output.echo("no budgets; holdfast budgets set project default --monthly 500 sets one")
    else:
        _print(budgets)


@app.command("set")
def put(
    scope: Scope,
    name: Name,
    *,
    monthly: Annotated[
        str, typer.Option("--monthly", metavar="USD", help="US dollars in a month of the calendar.")
    ],
    warn_at: Annotated[
        list[int] | None,
        typer.Option(
            "--warn-at",
            min=1,
            max=100,
            metavar="PERCENT",
            help="Warn at so much of it; repeatable.",
        ),
    ] = None,
    only_warn: Annotated[
        bool, typer.Option("--only-warn", help="Pause nothing once it is spent.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a project or a user may spend in a month; once it is spent, their jobs are paused."""
    on_reached = "warn" if only_warn else "pause"
    budget_in = BudgetIn(monthly_usd=monthly, on_reached=on_reached)
    if warn_at:
        budget_in = BudgetIn(monthly_usd=monthly, on_reached=on_reached, warn_at=warn_at)
    with Client.from_settings(read_settings()) as client:
        budget = BudgetsClient(client).put(_scope(scope), name, budget_in)
    if as_json:
        output.print_json(budget)
    else:
        _print([budget])


@app.command("rm")
def remove(scope: Scope, name: Name) -> None:
    """Let a project or a user spend what they like."""
    with Client.from_settings(read_settings()) as client:
        BudgetsClient(client).remove(_scope(scope), name)
    output.echo(f"{scope} {name} has no budget any more; paused jobs wait until they are resumed")


def _scope(word: str) -> str:
    if word not in SCOPES:
        raise BadRequest(f"{word!r} has no budget; write project or user")
    return word


def _print(budgets: list[BudgetOut]) -> None:
    right = ("SPENT", "OF", "PERCENT", "NOW/H")
    table = output.table("WHOSE", "MONTH", *right, "ONCE SPENT", right=right)
    for item in budgets:
        mark = item.simulated or item.is_price_estimate
        table.add_row(
            f"{item.scope} {item.name}",
            item.month,
            money(item.spent_micros, simulated=mark),
            money(item.monthly_micros),
            f"{item.spent_micros * 100 // item.monthly_micros} %",
            money(item.micros_per_hour, simulated=mark),
            "jobs are paused" if item.on_reached == "pause" else "it is only said",
        )
    output.print_table(table)
    for line in output.marks(*budgets):
        output.echo(line)
    for item in budgets:
        if item.is_spent:
            output.echo(
                f"the budget of {item.scope} {item.name} is spent; holdfast budgets set {item.scope} {item.name} raises it"
            )
