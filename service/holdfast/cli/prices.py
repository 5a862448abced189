"""The command that lists node prices."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from holdfast.api.schemas.prices import PriceHistoryOut, PriceOut, PricesOut
from holdfast.cli import output
from holdfast.cli.output import AsJson, dated_as, money
from holdfast.client import Client
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

OLD_NOTE: Final = "(old) is older than 90 days and listed last"
MOST_PLACES: Final = 50
"""Maximum number of places in one price history: the service queries a cloud for each."""


def prices(
    *,
    accelerator: Annotated[
        str | None,
        typer.Option(
            "--accelerator",
            "-a",
            help="Only nodes with these accelerators, such as A100:8 or A100.",
        ),
    ] = None,
    cloud: Annotated[str | None, typer.Option("--cloud", help="Only this cloud.")] = None,
    region: Annotated[
        str | None,
        typer.Option(
            "--region",
            help="Only this region; with --accelerator, current AWS prices are queried.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Maximum number of rows.")
    ] = 50,
    refused: Annotated[
        bool, typer.Option("--refused", help="Also show rejected catalog rows and the reasons.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="Show changes of spot prices since a day instead, 2026-03-01 or 30d."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List spot and on-demand prices of nodes, cheapest accelerator first."""
    asked = {"accelerator": accelerator, "cloud": cloud, "region": region}
    if since is not None and accelerator is None:
        raise BadRequest("--since needs an accelerator, such as -a A100:8")
    if since is not None and refused:
        raise BadRequest("--since and --refused exclude each other; use one of them")
    with Client.from_settings(read_settings()) as client:
        if since is not None and accelerator is not None:
            market, most = client.market, min(limit, MOST_PLACES)
            places = {"cloud": cloud, "region": region, "since": since}
            past = market.price_history(accelerator, limit=most, **places)
            output.print_json(past) if as_json else print_history(past)
            return
        response = client.market.prices(**asked, limit=limit, refused=refused)
    if as_json:
        output.print_json(response)
    elif not response.prices and not response.refused:
        output.echo("no price is known for these nodes")
    else:
        print_prices(response)


def print_history(response: PriceHistoryOut) -> None:
    """Print the price history of each place."""
    right = ("NODE/H NOW", "LOWEST", "MEAN", "HIGHEST", "ON DEMAND", "CHANGES")
    table = output.table("WHERE", "NODE", *right, "AS OF", "SOURCE", right=right)
    for item in response.series:
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
    if any(item.now.is_old for item in response.series):
        output.console.print(OLD_NOTE, markup=False)
    if any(item.now.is_estimate for item in response.series):
        output.console.print("~ price unknown, assumed high", markup=False)
    if any(not item.changes for item in response.series):
        output.console.print("- no price history", markup=False)
    if response.left_out:
        output.console.print(f"{response.left_out} more; name a cloud or a region", markup=False)


def print_prices(response: PricesOut) -> None:
    """Print the prices as a table, followed by notes on how to read them."""
    right = ("NODE/H SPOT", "ON DEMAND", "SAVED/H")
    table = output.table("ACCELERATORS", "WHERE", "NODE", *right, "AS OF", "SOURCE", right=right)
    for item in response.prices:
        table.add_row(
            f"{item.accelerator or '-'}:{item.count:g}",
            "/".join(filter(None, (item.cloud or "any", item.region, item.zone))),
            item.instance_type or "-",
            *_monies(item),
            dated_as(item.as_of, is_old=item.is_old),
            item.source,
        )
    output.print_table(table)
    for line in _notes(response):
        output.console.print(line, markup=False)


def _monies(item: PriceOut) -> list[str]:
    sums = (item.spot_micros_per_hour, item.on_demand_micros_per_hour, item.saved_micros_per_hour)
    return ["-" if sum_ is None else money(sum_, simulated=item.is_estimate) for sum_ in sums]


def _notes(response: PricesOut) -> list[str]:
    lines = []
    if any(item.is_old for item in response.prices):
        lines.append(OLD_NOTE)
    if any(item.is_estimate for item in response.prices):
        lines.append("~ price unknown, assumed high")
    if response.left_out:
        lines.append(f"{response.left_out} more; name a cloud or a region, or raise --limit")
    for row in response.refused:
        where = "/".join(filter(None, (row.cloud, row.region, row.zone)))
        what = f"{row.instance_type or '-'} {row.accelerator}:{row.count}"
        lines.append(f"rejected: {what} in {where}: {row.reason} ({row.rule})")
    if response.refused_count and not response.refused:
        lines.append(
            f"{response.refused_count} catalog rows rejected as implausible; --refused lists them"
        )
    return lines
