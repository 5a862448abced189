"""The command that adds up what jobs cost."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.api.cost_schemas import CostOut, CostsOut
from holdfast.cli import output
from holdfast.cli.bills import AsCsv, check_forms
from holdfast.cli.options import OnlyProject, Since, Until
from holdfast.cli.output import AsJson, money, span
from holdfast.client import Client
from holdfast.settings import read_settings


def costs(
    *,
    by: Annotated[
        str,
        typer.Option("--by", help="job, attempt, user, project, tag:NAME, zone or day."),
    ] = "job",
    each: Annotated[
        str | None,
        typer.Option("--each", help="With --by day: user, project, tag:NAME or zone of each day."),
    ] = None,
    since: Since = None,
    until: Until = None,
    project: OnlyProject = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="At most so many lines.")
    ] = 1000,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Add up what jobs cost, and what for."""
    check_forms(as_json=as_json, as_csv=as_csv)
    window = {"since": since, "until": until}
    asked = {"by": by, "each": each, **window, "project": project, "limit": limit}
    with Client.from_settings(read_settings()) as client:
        if as_csv:
            typer.echo(client.sheet("/v1/costs", **asked), nl=False)
            return
        told = client.costs(**asked)
    if as_json:
        output.print_json(told)
    else:
        print_costs(told)


def print_costs(told: CostsOut) -> None:
    """The sums as a table, and below it what a reader has to know about them."""
    numbers = ("JOBS", "WITH NODES", "USEFUL", "WASTED", "PAID", "ON DEMAND", "SAVED")
    parts = [told.each.upper()] if told.each else []
    table = output.table(told.by.upper(), *parts, *numbers, right=numbers)
    for cost in told.costs:
        whose = [" ".join(filter(None, (cost.key, cost.label))) or "-"]
        whose += [cost.part or "-"] if told.each else []
        table.add_row(*whose, *_cells(cost))
    table.add_row("all", *[""] * len(parts), *_cells(told.total), style="bold")
    output.print_table(table)
    for line in _notes(told):
        output.console.print(line, markup=False)


def _cells(cost: CostOut) -> list[str]:
    mark = cost.simulated or cost.is_price_estimate
    useful = "-" if cost.goodput is None else f"{cost.goodput:.1%}"
    sums = (cost.wasted_micros, cost.paid_micros, cost.on_demand_micros, cost.saved_micros)
    monies = [money(micros, simulated=mark) for micros in sums]
    return [str(cost.jobs), span(cost.provisioned_ms), useful, *monies]


def _notes(told: CostsOut) -> list[str]:
    total = told.total
    wasted = {
        "setup": total.micros.setup,
        "restore": total.micros.restore,
        "stalled": total.micros.stalled,
        "lost": total.micros.lost,
    }
    mark = total.simulated or total.is_price_estimate
    parts = [f"{word} {money(micros, simulated=mark)}" for word, micros in wasted.items()]
    lines = [f"wasted: {' · '.join(parts)} · waiting {span(total.waiting_ms)} (free)"]
    if told.left_out:
        lines.append(f"{told.left_out} more; --limit shows more")
    if told.pending:
        lines.append(
            f"{told.pending} jobs that have ended are not in it yet; ask again in a moment"
        )
    return lines + output.marks(total)
