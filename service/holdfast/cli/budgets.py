"""Commands for the monthly budgets of projects and users."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.api.schemas.billing import BudgetIn, BudgetOut
from holdfast.cli import output
from holdfast.cli.output import AsJson, money
from holdfast.client import Client
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

app = typer.Typer(
    help="Manage monthly budgets of projects and users.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SCOPES = ("project", "user")
Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="project or user.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the project or user.")]


@app.command("list")
def list_budgets(as_json: AsJson = False) -> None:
    """List budgets with the amount spent this month."""
    with Client.from_settings(read_settings()) as client:
        budgets = client.billing.budgets()
    if as_json:
        output.print_json(budgets)
    elif not budgets:
        output.echo(
            "no budgets; create one with: holdfast budgets set project default --monthly 500"
        )
    else:
        _print(budgets)


@app.command("set")
def set_budget(
    scope: Scope,
    name: Name,
    *,
    monthly: Annotated[
        str, typer.Option("--monthly", metavar="USD", help="US dollars per calendar month.")
    ],
    warn_at: Annotated[
        list[int] | None,
        typer.Option(
            "--warn-at",
            min=1,
            max=100,
            metavar="PERCENT",
            help="Warn at this percentage of the budget; repeatable.",
        ),
    ] = None,
    only_warn: Annotated[
        bool, typer.Option("--only-warn", help="Do not pause jobs when the budget is spent.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set the monthly budget of a project or user; once it is spent, their jobs are paused."""
    on_reached = "warn" if only_warn else "pause"
    budget_in = BudgetIn(monthly_usd=monthly, on_reached=on_reached)
    if warn_at:
        budget_in = BudgetIn(monthly_usd=monthly, on_reached=on_reached, warn_at=warn_at)
    with Client.from_settings(read_settings()) as client:
        budget = client.billing.set_budget(_scope(scope), name, budget_in)
    if as_json:
        output.print_json(budget)
    else:
        _print([budget])


@app.command("rm")
def remove_budget(scope: Scope, name: Name) -> None:
    """Remove the budget of a project or user."""
    with Client.from_settings(read_settings()) as client:
        client.billing.remove_budget(_scope(scope), name)
    output.echo(
        f"removed the budget of {scope} {name}; paused jobs stay paused until you resume them"
    )


def _scope(word: str) -> str:
    if word not in SCOPES:
        raise BadRequest(f"{word!r} cannot have a budget; write project or user")
    return word


def _print(budgets: list[BudgetOut]) -> None:
    right = ("SPENT", "BUDGET", "PERCENT", "NOW/H")
    table = output.table("SCOPE", "MONTH", *right, "WHEN SPENT", right=right)
    for item in budgets:
        mark = item.simulated or item.is_price_estimate
        table.add_row(
            f"{item.scope} {item.name}",
            item.month,
            money(item.spent_micros, simulated=mark),
            money(item.monthly_micros),
            f"{item.spent_micros * 100 // item.monthly_micros} %",
            money(item.micros_per_hour, simulated=mark),
            "jobs are paused" if item.on_reached == "pause" else "notification only",
        )
    output.print_table(table)
    for line in output.marks(*budgets):
        output.echo(line)
    for item in budgets:
        if item.is_spent:
            output.echo(
                f"the budget of {item.scope} {item.name} is spent; raise it with: holdfast budgets set {item.scope} {item.name}"
            )
