"""The command that tells how often nodes are taken."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from holdfast.api.schemas.preemptions import (
    NoticesOut,
    PreemptionCostsOut,
    PreemptionOut,
    PreemptionsOut,
)
from holdfast.cli import output
from holdfast.cli.options import OnlyProject, Since, Until
from holdfast.cli.output import AsJson, money, span
from holdfast.client import Client
from holdfast.client.billing import MarketClient
from holdfast.errors import BadRequest
from holdfast.settings import read_settings


def preemptions(
    *,
    by: Annotated[
        str | None, typer.Option("--by", help="zone, hour, type, cause or zone-hour; else zone.")
    ] = None,
    since: Since = None,
    until: Until = None,
    zone: Annotated[str | None, typer.Option("--zone", help="Only in this zone.")] = None,
    instance_type: Annotated[
        str | None, typer.Option("--type", help="Only of this instance type.")
    ] = None,
    project: OnlyProject = None,
    hours: Annotated[
        int | None,
        typer.Option("--hours", help="Hours taken as one by hour: 1, 2, 3, 4, 6, 8 or 12."),
    ] = None,
    notices: Annotated[
        bool, typer.Option("--notices", help="Instead: how much warning there was.")
    ] = False,
    worst: Annotated[
        int | None,
        typer.Option(
            "--worst", min=1, max=200, help="Instead: so many jobs whose lost work cost the most."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how often nodes are taken, what notice they get, and how long it takes to come back."""
    if notices and worst:
        raise BadRequest("--notices --worst: write one of the two")
    if (notices or worst) and (by or hours is not None):
        raise BadRequest(
            "--by and --hours: leave them out with --notices and --worst, which tell something else"
        )
    asked = {
        "since": since,
        "until": until,
        "zone": zone,
        "project": project,
        "type": instance_type,
    }
    with Client.from_settings(read_settings()) as client:
        if notices or worst:
            _show_else(MarketClient(client), asked, worst, as_json=as_json)
            return
        told = client.preemptions(
            **asked, by=by or "zone", hours=None if hours is None else str(hours)
        )
    if as_json:
        output.print_json(told)
    else:
        print_preemptions(told)


def _show_else(
    client: MarketClient, asked: dict[str, str | None], worst: int | None, *, as_json: bool
) -> None:
    told: NoticesOut | PreemptionCostsOut = (
        client.worst(worst, **asked) if worst else client.notices(**asked)
    )
    if as_json:
        output.print_json(told)
    elif isinstance(told, PreemptionCostsOut):
        _print_tolls(told)
    else:
        _print_notices(told)


def _print_notices(told: NoticesOut) -> None:
    table = output.table("WARNING", "TAKEN", "SAVED IN TIME", right=("TAKEN", "SAVED IN TIME"))
    table.add_row("none", str(told.without), "-")
    if told.unsaid.taken:
        table.add_row("not said", str(told.unsaid.taken), str(told.unsaid.used))
    for item in told.notices:
        until = f" to {item.until_s:g} s" if item.until_s else " s"
        table.add_row(f"over {item.over_s:g}{until}", str(item.taken), str(item.used))
    output.print_table(table)


def _print_tolls(told: PreemptionCostsOut) -> None:
    right = ("TAKEN", "STEPS LOST", "TIME LOST", "LOST", "WAITED")
    table = output.table("JOB", "NAME", "PROJECT", *right, right=right)
    for toll in told.jobs:
        mark = toll.simulated or toll.is_price_estimate
        table.add_row(
            *(toll.job_id, toll.name, toll.project, str(toll.taken), f"{toll.lost_steps:,}"),
            *(span(toll.lost_ms), money(toll.lost_micros, simulated=mark), span(toll.wait_ms)),
        )
    output.print_table(table)
    for line in output.marks(*told.jobs):
        output.console.print(line, markup=False)


def print_preemptions(told: PreemptionsOut) -> None:
    """The sums as a table, and below it what a reader has to know about them."""
    numbers = ("TAKEN", "NODE-HOURS", "PER 100 H", "90 %", "NOTICED", "SAVED IN TIME")
    more = ("DETECT", "WAIT", "SETUP", "RESTORE", "REDO", "LOST")
    table = output.table(told.by.upper(), *numbers, *more, right=(*numbers, *more))
    for item in told.preemptions:
        table.add_row(_name(item), *_cells(item))
    table.add_row("all", *_cells(told.total), style="bold")
    output.print_table(table)
    for line in _notes(told):
        output.console.print(line, markup=False)


def _name(item: PreemptionOut) -> str:
    hour = None if item.hour is None else f"{item.hour:02d}:00Z"
    return " ".join(filter(None, (item.zone, hour, item.instance_type, item.cause))) or "-"


def _cells(item: PreemptionOut) -> list[str]:
    taken = item.taken if item.cause is None else item.causes.get(item.cause, 0)
    back = item.recovery
    spans = (back.detect_s, back.wait_s, back.setup_s, back.restore_s, back.redo_s)
    low, high = item.per_100_node_hours_low, item.per_100_node_hours_high
    rate = item.per_100_node_hours
    mark = item.simulated or item.is_price_estimate
    return [
        str(taken),
        f"{item.node_hours:,.1f}",
        "-" if rate is None else f"{rate:.2f}",
        "-" if low is None or high is None else f"{low:.2f} - {high:.2f}",
        str(item.noticed),
        str(item.notice_used),
        *("-" if seconds is None else span(round(1000 * seconds)) for seconds in spans),
        f"{item.lost_steps:,} steps, {money(item.lost_micros, simulated=mark)}",
    ]


def _notes(told: PreemptionsOut) -> list[str]:
    total = told.total
    others = {c: n for c, n in total.causes.items() if c not in ("preempted", "node_failed")}
    lines = ["taken: preempted, or gone without a word. Hours are in UTC; recoveries are averages."]
    if others:
        words = ", ".join(f"{n} {cause.replace('_', ' ')}" for cause, n in others.items())
        lines.append(f"other losses, which are in none of these figures: {words}")
    if any(item.per_100_node_hours is None for item in (*told.preemptions, total)):
        lines.append("a rate is told from 5 losses on")
    lines += output.marks(total)
    halves = [point for point in told.survival if point.share <= 0.5]
    if halves:
        lasting = timedelta(hours=halves[0].hours) // timedelta(milliseconds=1)
        # Lengths are kept in whole minutes.
        lines.append(
            f"half of all placements last longer than {span(lasting)}"
            if lasting
            else "half of all placements last less than a minute"
        )
    if told.pending:
        lines.append(
            f"{told.pending} jobs that have ended are not in it yet; ask again in a moment"
        )
    return lines
