"""The command that shows preemption rates, notices and recovery times."""

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
from holdfast.cli.output import AsJson, OnlyProject, Since, Until, money, span
from holdfast.client import Client
from holdfast.client.market import MarketClient
from holdfast.errors import BadRequest
from holdfast.settings import read_settings


def preemptions(
    *,
    by: Annotated[
        str | None,
        typer.Option("--by", help="zone, hour, type, cause or zone-hour; default: zone."),
    ] = None,
    since: Since = None,
    until: Until = None,
    zone: Annotated[str | None, typer.Option("--zone", help="Only this zone.")] = None,
    instance_type: Annotated[
        str | None, typer.Option("--type", help="Only this instance type.")
    ] = None,
    project: OnlyProject = None,
    hours: Annotated[
        int | None,
        typer.Option("--hours", help="Bucket size in hours for hour: 1, 2, 3, 4, 6, 8 or 12."),
    ] = None,
    notices: Annotated[
        bool, typer.Option("--notices", help="Show the distribution of notice times instead.")
    ] = False,
    worst: Annotated[
        int | None,
        typer.Option(
            "--worst",
            min=1,
            max=200,
            help="Show the jobs with the most expensive lost work instead; maximum number.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how often nodes are preempted, with how much notice, and how long recovery takes."""
    if notices and worst:
        raise BadRequest("--notices and --worst exclude each other; use one of them")
    if (notices or worst) and (by or hours is not None):
        raise BadRequest("--by and --hours do not apply to --notices and --worst; omit them")
    asked = {
        "since": since,
        "until": until,
        "zone": zone,
        "project": project,
        "type": instance_type,
    }
    with Client.from_settings(read_settings()) as client:
        if notices or worst:
            _show_details(client.market, asked, worst, as_json=as_json)
            return
        response = client.market.preemptions(
            **asked, by=by or "zone", hours=None if hours is None else str(hours)
        )
    if as_json:
        output.print_json(response)
    else:
        print_preemptions(response)


def _show_details(
    client: MarketClient, asked: dict[str, str | None], worst: int | None, *, as_json: bool
) -> None:
    response: NoticesOut | PreemptionCostsOut = (
        client.preemption_costs(worst, **asked) if worst else client.notices(**asked)
    )
    if as_json:
        output.print_json(response)
    elif isinstance(response, PreemptionCostsOut):
        _print_preemption_costs(response)
    else:
        _print_notices(response)


def _print_notices(response: NoticesOut) -> None:
    table = output.table(
        "NOTICE", "PREEMPTIONS", "SAVED IN TIME", right=("PREEMPTIONS", "SAVED IN TIME")
    )
    table.add_row("none", str(response.without), "-")
    if response.unsaid.taken:
        table.add_row("unknown", str(response.unsaid.taken), str(response.unsaid.used))
    for item in response.notices:
        until = f" to {item.until_s:g} s" if item.until_s else " s"
        table.add_row(f"over {item.over_s:g}{until}", str(item.taken), str(item.used))
    output.print_table(table)


def _print_preemption_costs(response: PreemptionCostsOut) -> None:
    right = ("PREEMPTIONS", "STEPS LOST", "TIME LOST", "LOST", "WAITED")
    table = output.table("JOB", "NAME", "PROJECT", *right, right=right)
    for cost in response.jobs:
        mark = cost.simulated or cost.is_price_estimate
        table.add_row(
            *(cost.job_id, cost.name, cost.project, str(cost.taken), f"{cost.lost_steps:,}"),
            *(span(cost.lost_ms), money(cost.lost_micros, simulated=mark), span(cost.wait_ms)),
        )
    output.print_table(table)
    for line in output.marks(*response.jobs):
        output.console.print(line, markup=False)


def print_preemptions(response: PreemptionsOut) -> None:
    """Print the totals as a table, followed by notes on how to read them."""
    numbers = ("PREEMPTIONS", "NODE-HOURS", "PER 100 H", "90 %", "NOTICED", "SAVED IN TIME")
    more = ("DETECT", "WAIT", "SETUP", "RESTORE", "REDO", "LOST")
    table = output.table(response.by.upper(), *numbers, *more, right=(*numbers, *more))
    for item in response.preemptions:
        table.add_row(_name(item), *_cells(item))
    table.add_row("all", *_cells(response.total), style="bold")
    output.print_table(table)
    for line in _notes(response):
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
        f"{output.counted(item.lost_steps, 'step')}, {money(item.lost_micros, simulated=mark)}",
    ]


def _notes(response: PreemptionsOut) -> list[str]:
    total = response.total
    counted = ("preempted", "node_failed", "drill")
    others = {c: n for c, n in total.causes.items() if c not in counted}
    lines = [
        "preemptions include nodes lost without notice; hours are in UTC; recovery times are averages"
    ]
    if total.drills:
        several = total.drills != 1
        lines.append(
            f"{total.drills} drill{'s' * several} that users requested {'are' if several else 'is'} not included above"
        )
    if others:
        words = ", ".join(f"{n} {cause.replace('_', ' ')}" for cause, n in others.items())
        lines.append(f"other capacity losses, not included above: {words}")
    if any(item.per_100_node_hours is None for item in (*response.preemptions, total)):
        lines.append("rates need at least 5 preemptions")
    lines += output.marks(total)
    halves = [point for point in response.survival if point.share <= 0.5]
    if halves:
        lasting = timedelta(hours=halves[0].hours) // timedelta(milliseconds=1)
        # Lifetimes are stored in whole minutes.
        lines.append(
            f"median attempt lifetime: {span(lasting)}"
            if lasting
            else "median attempt lifetime: below one minute"
        )
    if response.pending:
        lines.append(
            f"{response.pending} ended jobs are not included yet; run this again in a moment"
        )
    return lines
