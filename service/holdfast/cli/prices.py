"""The command that shows what nodes cost."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.api.price_schemas import PriceOut, PricesOut
from holdfast.cli import output
from holdfast.cli.output import AsJson, money
from holdfast.client import Client
from holdfast.settings import read_settings


def prices(
    *,
    accelerator: Annotated[
        str | None,
        typer.Option("--accelerator", "-a", help="Only nodes with these, such as A100:8 or A100."),
    ] = None,
    cloud: Annotated[str | None, typer.Option("--cloud", help="Only of this cloud.")] = None,
    region: Annotated[
        str | None,
        typer.Option(
            "--region",
            help="Only in this region; with --accelerator, AWS is asked for prices of now.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 50,
    refused: Annotated[
        bool, typer.Option("--refused", help="Also show rows of price lists that lie, and why.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what nodes cost as spot and on demand, the cheapest accelerator first."""
    asked = {"accelerator": accelerator, "cloud": cloud, "region": region}
    with Client.from_settings(read_settings()) as client:
        told = client.prices(**asked, limit=limit, refused=refused)
    if as_json:
        output.print_json(told)
    else:
        print_prices(told)


def print_prices(told: PricesOut) -> None:
    """The prices as a table, and below it what a reader has to know about them."""
    right = ("NODE/H SPOT", "ON DEMAND", "SAVED/H")
    table = output.table("ACCELERATORS", "WHERE", "NODE", *right, "AS OF", "SOURCE", right=right)
    for item in told.prices:
        table.add_row(
            f"{item.accelerator or '-'}:{item.count:g}",
            "/".join(filter(None, (item.cloud or "any", item.region, item.zone))),
            item.instance_type or "-",
            *_monies(item),
            f"{item.as_of:%Y-%m-%d}",
            item.source,
        )
    output.print_table(table)
    for line in _notes(told):
        output.console.print(line, markup=False)


def _monies(item: PriceOut) -> list[str]:
    sums = (item.spot_micros_per_hour, item.on_demand_micros_per_hour, item.saved_micros_per_hour)
    return ["-" if sum_ is None else money(sum_, simulated=item.is_estimate) for sum_ in sums]


def _notes(told: PricesOut) -> list[str]:
    lines = []
    if any(item.is_estimate for item in told.prices):
        lines.append("~ nobody tells this price; it is taken to be high")
    if told.left_out:
        lines.append(f"{told.left_out} more; name a cloud or a region, or raise --limit")
    for row in told.refused:
        where = "/".join(filter(None, (row.cloud, row.region, row.zone)))
        what = f"{row.instance_type or '-'} {row.accelerator}:{row.count}"
        lines.append(f"refused: {what} in {where}: {row.reason} ({row.rule})")
    if told.refused_count and not told.refused:
        lines.append(
            f"{told.refused_count} rows of price lists are not believed; --refused says why"
        )
    return lines
