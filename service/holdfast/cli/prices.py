"""The command that shows what nodes cost."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from holdfast.api.schemas.prices import PriceHistoryOut, PriceOut, PricesOut
from holdfast.cli import output
from holdfast.cli.output import AsJson, dated_as, money
from holdfast.client import Client
from holdfast.client.billing import MarketClient
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

OLD_NOTE: Final = "(old) is older than 90 days, and listed after the others"
MOST_PLACES: Final = 50
"""Places whose history is told at once, at most: the service asks clouds about each."""


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
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="Instead: how spot prices changed since a day, 2026-03-01 or 30d."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what nodes cost as spot and on demand, the cheapest accelerator first."""
    asked = {"accelerator": accelerator, "cloud": cloud, "region": region}
    if since is not None and accelerator is None:
        raise BadRequest("--since: name the accelerator whose prices are meant, such as -a A100:8")
    if since is not None and refused:
        raise BadRequest("--since --refused: write one of the two")
    with Client.from_settings(read_settings()) as client:
        if since is not None and accelerator is not None:
            market, most = MarketClient(client), min(limit, MOST_PLACES)
            places = {"cloud": cloud, "region": region, "since": since}
            past = market.price_history(accelerator, limit=most, **places)
            output.print_json(past) if as_json else print_history(past)
            return
        told = client.prices(**asked, limit=limit, refused=refused)
    if as_json:
        output.print_json(told)
    else:
        print_prices(told)


def print_history(told: PriceHistoryOut) -> None:
    """What each place has asked for a node over a time."""
    right = ("NODE/H NOW", "LOWEST", "MEAN", "HIGHEST", "ON DEMAND", "CHANGES")
    table = output.table("WHERE", "NODE", *right, "AS OF", "SOURCE", right=right)
    for item in told.series:
        now = item.now
        past = (
            item.lowest_micros_per_hour,
            item.mean_micros_per_hour,
            item.highest_micros_per_hour,
        )
        sums = (now.spot_micros_per_hour, *past, now.on_demand_micros_per_hour)
        table.add_row(
            "/".join(filter(None, (now.cloud, now.region, now.zone))),
            now.instance_type or "-",
            *("-" if each is None else money(each, simulated=now.is_estimate) for each in sums),
            str(max(0, len(item.changes) - 1)),
            dated_as(now.as_of, is_old=now.is_old),
            now.source,
        )
    output.print_table(table)
    if any(item.now.is_old for item in told.series):
        output.console.print(OLD_NOTE, markup=False)
    if any(item.now.is_estimate for item in told.series):
        output.console.print("~ nobody tells this price; it is taken to be high", markup=False)
    if any(not item.changes for item in told.series):
        output.console.print("- nobody tells how that price has changed", markup=False)
    if told.left_out:
        output.console.print(f"{told.left_out} more; name a cloud or a region", markup=False)


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
            dated_as(item.as_of, is_old=item.is_old),
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
    if any(item.is_old for item in told.prices):
        lines.append(OLD_NOTE)
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
