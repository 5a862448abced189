"""Commands that show what jobs cost, where the time and money went, and why."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from holdfast.api.schemas.billing import (
    AttemptOut,
    BillOut,
    ChargesOut,
    CostOut,
    CostsOut,
    NodeLossOut,
    PhasesOut,
)
from holdfast.cli import output
from holdfast.cli.diagnostics import print_hints
from holdfast.cli.output import AsJson, OnlyProject, Since, Until, clock, money, saved, span
from holdfast.cli.usage.job_argument import JobId
from holdfast.client import Client
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

PHASES: Final = tuple(PhasesOut.model_fields)
"""Phases in the order of the columns."""
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV for spreadsheets.")]


def bill(
    job_id: JobId,
    *,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show how the time and money of a job were spent."""
    check_output_format(as_json=as_json, as_csv=as_csv)
    with Client.from_settings(read_settings()) as client:
        if as_csv:
            typer.echo(client.get_csv(f"/v1/jobs/{job_id}/bill"), nl=False)
            return
        account = client.jobs.bill(job_id)
    if as_json:
        output.print_json(account)
    else:
        print_bill(account)


def why(
    job_id: JobId,
    as_json: AsJson = False,
) -> None:
    """Explain a job: its state, cost, history and probable problems."""
    with Client.from_settings(read_settings()) as client:
        response = client.jobs.timeline(job_id)
        found = None if as_json else client.diagnostics.hints(job_id)
    if found is None:
        output.print_json(response)
        return
    for sentence in response:
        when = f"{sentence.at:%Y-%m-%d %H:%M:%SZ}  " if sentence.at else ""
        output.console.print(f"{when}{sentence.text}", markup=False)
    print_hints(found)


def check_output_format(*, as_json: bool, as_csv: bool) -> None:
    """Check that at most one output format is requested.

    Raises:
        BadRequest: two formats are requested.
    """
    if as_json and as_csv:
        raise BadRequest("--json and --csv exclude each other; use one of them")


def print_bill(account: BillOut) -> None:
    """Print the bill as a table, a summary and one line for each capacity loss."""
    # Most programs report their phases, which leaves no unmeasured time.
    phases = [name for name in PHASES if name != "unmeasured" or account.ms.unmeasured]
    columns = (
        *("ATTEMPT", "WHERE", "WAITING"),
        *(name.upper() for name in phases),
        *("PAID", "ENDED BY"),
    )
    table = output.table(*columns, right=columns[2:-1])

    def times(ms: PhasesOut) -> list[str]:
        return [span(getattr(ms, name)) for name in phases]

    for item in account.attempts:
        ended_by = (item.cause or ("end of the job" if item.ended_at else "-")).replace("_", " ")
        ended_by += " (drill)" * item.drill
        paid = money(item.paid_micros, simulated=item.simulated or item.is_price_estimate)
        table.add_row(
            str(item.attempt),
            _location(item),
            span(item.waiting_ms),
            *times(item.ms),
            paid,
            ended_by,
        )
    mark = account.simulated or account.is_price_estimate
    for line in account.adjustments:
        what = f"{line.rule.replace('_', ' ')} in {line.zone}"
        table.add_row(
            str(line.attempt),
            what,
            *[""] * (len(phases) + 1),
            money(line.micros, simulated=mark),
            "",
        )
    table.add_row("", "time", span(account.waiting_ms), *times(account.ms), "", "", style="bold")
    table.add_row(
        "",
        "money",
        "-",
        *(money(getattr(account.micros, name), simulated=mark) for name in phases),
        money(account.paid_micros, simulated=mark),
        "",
        style="bold",
    )
    output.print_table(table)
    for text in _summary(account):
        output.console.print(text, markup=False)
    if account.charges is not None:
        _print_charges(account, account.charges)


def _print_charges(account: BillOut, charges: ChargesOut) -> None:
    """Print what the job costs beside its nodes, and the sum of both."""
    if charges.lines:
        columns = ("BESIDE THE NODES", "WHERE", "QUANTITY", "UNIT", "PRICE", "AMOUNT")
        table = output.table(*columns, right=("QUANTITY", "PRICE", "AMOUNT"))
        for line in charges.lines:
            price = "unknown" if line.unit_micros is None else _exact(line.unit_micros)
            amount = "-" if line.micros is None else _exact(line.micros)
            cells = (line.item, line.place or "unknown", line.quantity, line.unit, price, amount)
            table.add_row(*cells)
        output.print_table(table)
        mark = account.simulated or account.is_price_estimate
        total = money(account.total_micros or 0, simulated=mark)
        paid = money(account.paid_micros, simulated=mark)
        text = f"whole bill {total}: nodes {paid} + {money(charges.micros)} beside them"
        text += ", without what has no known price" * charges.has_unpriced
        dated = f"{charges.prices_source}, as of {charges.prices_as_of}"
        output.console.print(f"{text}\nprices beside the nodes: {dated}", markup=False)
    if charges.warning:
        output.console.print(f"warning: {charges.warning}", markup=False)


def _exact(micros: int) -> str:
    """Dollars to the micro-dollar: most prices of units are fractions of a cent."""
    return f"${micros / 1_000_000:.6f}"


def _location(item: AttemptOut) -> str:
    if len(item.groups) < 2:
        return f"{item.zone} x{item.nodes}"
    return " + ".join(
        f"{f'{group.name}: ' if group.name else ''}{group.zone or 'not there'} x{group.nodes}"
        f"{'' if group.is_spot or not group.zone else ' on demand'}"
        for group in item.groups
    )


def _summary(account: BillOut) -> list[str]:
    mark = account.simulated or account.is_price_estimate
    sums = {
        "paid": account.paid_micros,
        "on demand for the same work": account.on_demand_micros,
        "wasted": account.wasted_micros,
    }
    words = [f"{word} {money(sum_, simulated=mark)}" for word, sum_ in sums.items()]
    words.insert(2, saved(account.saved_micros, simulated=mark))
    if account.goodput is not None and account.goodput_with_waiting is not None:
        words.append(
            f"useful: {account.goodput:.1%} of the time with nodes, {account.goodput_with_waiting:.1%} of the total time"
        )
    if account.paused_ms:
        words.append(f"paused for {span(account.paused_ms)} of the waiting time")
    lines = [" · ".join(words)]
    for loss in account.losses:
        if loss.node is not None:
            lines.append(_node_loss_text(loss))
            continue
        notice = f"{loss.notice_s:.1f} s notice" if loss.notice_s is not None else "no notice"
        who = f"group {loss.group} " if loss.group else ""
        lines.append(
            f"{clock(loss.at)} attempt {loss.attempt} {who}{_cause_text(loss)} in {loss.zone}, {notice}: lost "
            f"{output.counted(loss.lost_steps, 'step')}, {span(loss.lost_ms)}, {money(loss.lost_micros, simulated=mark)}"
        )
    lines += [
        f"attempt {item.attempt} trained on fewer nodes for {span(item.degraded_ms)}"
        for item in account.attempts
        if item.degraded_ms
    ]
    if account.simulated:
        lines.append("~ simulated price: local processes, nothing is billed")
    return [*lines, *_price_notes(account), *_rule_notes(account)]


def _cause_text(loss: NodeLossOut) -> str:
    return loss.cause.replace("_", " ") + " (drill)" * loss.drill


def _node_loss_text(loss: NodeLossOut) -> str:
    """Describe the loss of a single node while the others kept running."""
    after = loss.replaced_after_ms
    how = "not replaced" if after is None else f"replaced after {after / 1000:.1f} s"
    who = f"group {loss.group}" if loss.group else f"node {loss.node}"
    what = f"{who} {_cause_text(loss)}"
    return f"{clock(loss.at)} attempt {loss.attempt} {what} in {loss.zone}, {how}"


def _price_notes(account: BillOut) -> list[str]:
    """List the price sources with their dates and the attempts that they apply to."""
    response: dict[str, list[str]] = {}
    for item in account.attempts:
        if item.price_source:
            since = f", as of {item.price_as_of:%Y-%m-%d %H:%MZ}" if item.price_as_of else ""
            mark = "~ unknown, assumed high: " if item.is_price_estimate else ""
            response.setdefault(f"{mark}{item.price_source}{since}", []).append(str(item.attempt))
    notes = [
        f"price of attempt{'s' if len(attempts) > 1 else ''} {', '.join(attempts)}: {source}"
        for source, attempts in response.items()
    ]
    for item in account.attempts:
        notes += [
            f"{step.at:%Y-%m-%d %H:%M:%SZ} attempt {item.attempt}: "
            f"the nodes {f'of group {_group_name(item, step.group)} ' if len(item.groups) > 1 else ''}cost "
            f"{money(step.micros_per_hour)} an hour from then on ({step.source})"
            for step in item.price_changes
        ]
    return notes


def _group_name(item: AttemptOut, group: int) -> str:
    return (item.groups[group].name if group < len(item.groups) else "") or str(group)


def _rule_notes(account: BillOut) -> list[str]:
    """List the source of each provider rule that changed the bill."""
    pages = {line.rule: line.source for line in account.adjustments}
    return [f"rule {rule.replace('_', ' ')}: {source}" for rule, source in pages.items()]


def costs(
    *,
    by: Annotated[
        str,
        typer.Option("--by", help="job, attempt, user, project, tag:NAME, zone or day."),
    ] = "job",
    each: Annotated[
        str | None,
        typer.Option(
            "--each", help="With --by day: also group by user, project, tag:NAME or zone."
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    project: OnlyProject = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="Maximum number of rows.")
    ] = 1000,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show total costs of jobs by user, project, tag, zone or day."""
    check_output_format(as_json=as_json, as_csv=as_csv)
    window = {"since": since, "until": until}
    asked: dict[str, Any] = {"by": by, "each": each, **window, "project": project, "limit": limit}
    with Client.from_settings(read_settings()) as client:
        if as_csv:
            typer.echo(client.get_csv("/v1/costs", **asked), nl=False)
            return
        response = client.billing.costs(**asked)
    if as_json:
        output.print_json(response)
    else:
        print_costs(response)


def print_costs(response: CostsOut) -> None:
    """Print the totals as a table, followed by notes on how to read them."""
    # Jobs on own machines and stores cost nothing beside their nodes.
    whole = response.total.charged_micros > 0 or response.total.has_unpriced
    beside = ("BESIDE", "TOTAL") * whole
    numbers = ("JOBS", "WITH NODES", "USEFUL", "WASTED", "PAID", *beside, "ON DEMAND", "SAVED")
    parts = [response.each.upper()] if response.each else []
    table = output.table(response.by.upper(), *parts, *numbers, right=numbers)
    for cost in response.costs:
        whose = [" ".join(filter(None, (cost.key, cost.label))) or "-"]
        whose += [cost.part or "-"] if response.each else []
        table.add_row(*whose, *_cells(cost, whole=whole))
    all_cells = _cells(response.total, whole=whole)
    table.add_row("all", *[""] * len(parts), *all_cells, style="bold")
    output.print_table(table)
    for line in _notes(response):
        output.console.print(line, markup=False)


def _cells(cost: CostOut, *, whole: bool) -> list[str]:
    mark = cost.simulated or cost.is_price_estimate
    useful = "-" if cost.goodput is None else f"{cost.goodput:.1%}"
    nodes = [money(micros, simulated=mark) for micros in (cost.wasted_micros, cost.paid_micros)]
    saved_ones = (cost.on_demand_micros, cost.saved_micros)
    monies = [*nodes, *(money(micros, simulated=mark) for micros in saved_ones)]
    if whole:
        at_least = ">= " * cost.has_unpriced
        total = money(cost.total_micros or 0, simulated=mark)
        monies[2:2] = [f"{at_least}{money(cost.charged_micros)}", f"{at_least}{total}"]
    return [str(cost.jobs), span(cost.provisioned_ms), useful, *monies]


def _charge_notes(response: CostsOut) -> list[str]:
    """Divide what is beside the nodes, and name its prices."""
    total = response.total
    if not (total.charged_micros or total.has_unpriced):
        return []
    charges = total.charges.model_dump().items()
    parts = [f"{word} {money(micros)}" for word, micros in charges]
    text = f"beside the nodes: {' · '.join(parts)}"
    text += ", without what has no known price" * total.has_unpriced
    return [
        f"{text}; limits and budgets count the nodes",
        f"prices beside the nodes: {response.prices_source}, as of {response.prices_as_of}",
    ]


def _notes(response: CostsOut) -> list[str]:
    total = response.total
    wasted = {
        "setup": total.micros.setup,
        "restore": total.micros.restore,
        "stalled": total.micros.stalled,
        "lost": total.micros.lost,
    }
    mark = total.simulated or total.is_price_estimate
    parts = [f"{word} {money(micros, simulated=mark)}" for word, micros in wasted.items()]
    lines = [f"wasted: {' · '.join(parts)} · waiting {span(total.waiting_ms)} (free)"]
    lines += _charge_notes(response)
    if response.left_out:
        lines.append(f"{response.left_out} more; raise --limit to see them")
    if response.pending:
        lines.append(
            f"{response.pending} ended jobs are not included yet; run this again in a moment"
        )
    return lines + output.marks(total)
