"""Commands for planning: cost of a failure, checkpoint intervals, accelerators for a model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.api.schemas.prices import CandidateOut
from holdfast.cli import output
from holdfast.cli.jobs import connect
from holdfast.cli.output import AsJson, dated_as, money, span
from holdfast.cli.planning.options import duration_s

app = typer.Typer(help="Estimate costs and risks before you submit a job.", no_args_is_help=True)

OLD_NOTE = "(old) is older than 90 days: no newer price is known"


@app.command("loss")
def loss(
    *,
    at: Annotated[str, typer.Option("--at", help="Time of the failure, such as 67h.")],
    every: Annotated[
        str | None,
        typer.Option("--every", help="Time between checkpoints, such as 4h. Default: none."),
    ] = None,
    usd_per_day: Annotated[
        float | None, typer.Option("--usd-per-day", min=0, help="Cost of all nodes per day.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", help="Accelerators of a node, such as A100:8, at today's price."),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of nodes.")] = 1,
    spot: Annotated[bool, typer.Option("--spot", help="Use the spot price.")] = False,
    as_json: AsJson = False,
) -> None:
    """Estimate the loss from a failure, with and without checkpoints."""
    asked: dict[str, Any] = {
        "at_hour": duration_s("--at", at) / 3600,
        "every_hours": duration_s("--every", every) / 3600 if every else None,
        "usd_per_day": usd_per_day,
        "accelerator": gpus,
        "nodes": nodes,
        "spot": spot,
    }
    with connect() as client:
        response = client.market.loss(**asked)
    if as_json:
        output.print_json(response)
        return
    mark = response.is_price_estimate
    day = money(response.micros_per_day, simulated=mark)
    dated = (
        f", {dated_as(response.price_as_of, is_old=response.is_price_old)}"
        if response.price_as_of
        else ""
    )
    output.console.print(f"{day} a day ({response.price_source}{dated})", markup=False)
    rows = [("without checkpoints", response.hours_without, response.micros_without, response.roughly_micros_without)]  # fmt: skip
    if every:
        rows.append((f"with one every {every}", response.hours_with, response.micros_with, response.roughly_micros_with))  # fmt: skip
    for what, hours, micros, roughly in rows:
        exact = money(micros, simulated=mark)
        output.console.print(
            f"{what:<22} at most {hours:g} h and {exact} (about ${roughly / 1e6:,.0f})",
            markup=False,
        )


@app.command("cadence")
def cadence(
    *,
    cost: Annotated[
        str, typer.Option("--cost", help="Time that a checkpoint stops training, such as 45s.")
    ],
    between: Annotated[
        str, typer.Option("--between-failures", help="Mean lifetime of nodes, such as 3h.")
    ],
    every: Annotated[
        str | None, typer.Option("--every", help="Interval to evaluate, such as 30m.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the best checkpoint interval.

    Workers with `every: auto` measure and apply it themselves.
    """
    cost_s = duration_s("--cost", cost)
    between_s = duration_s("--between-failures", between)
    every_s = duration_s("--every", every) if every else None
    with connect() as client:
        response = client.market.cadence(cost_s, between_s, every_s)
    if as_json:
        output.print_json(response)
        return
    output.console.print(
        f"best: every {response.best_s / 60:.1f} min, with {response.waste:.1%} of the time wasted",
        markup=False,
    )
    if response.asked_waste is not None:
        output.console.print(f"every {every}: {response.asked_waste:.1%} wasted", markup=False)
    for kind, (low, high) in response.usual_s.items():
        habit = f"every {span(1000 * low)} to {span(1000 * high)}"
        output.console.print(f"{kind:<11} {habit} (common practice)", markup=False)


def advise(
    *,
    params: Annotated[str, typer.Option("--params", help="Size of the model, such as 7B.")],
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="Remaining time, such as 48h.")
    ] = None,
    no_checkpoints: Annotated[
        bool, typer.Option("--no-checkpoints", help="The job saves no checkpoints.")
    ] = False,
    critical: Annotated[
        bool, typer.Option("--critical", help="The job is urgent: a person waits for it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List accelerators that fit a model with their prices, and whether spot nodes suit the job."""
    hours_left = duration_s("--deadline", deadline) / 3600 if deadline else None
    with connect() as client:
        response = client.market.advice(
            params, hours_left=hours_left, checkpoints=not no_checkpoints, critical=critical
        )
    if as_json:
        output.print_json(response)
        return
    size = output.size(response.memory_bytes)
    output.console.print(
        f"{response.parameters:,} parameters: {size} with Adam, without activations"
    )
    output.console.print(f"{response.how[:1].upper()}{response.how[1:]}.", markup=False)
    numbers = ("PEAK TFLOPS", "ON DEMAND", "SPOT", "TFLOPS PER $")
    table = output.table("FITS", "GPU", *numbers, "AS OF", right=numbers)
    for fits, candidate in [(True, one) for one in response.fits] + [
        (False, c) for c in response.others
    ]:
        table.add_row("✓" if fits else "", *_cells(candidate))
    output.print_table(table)
    if unpriced := [one.accelerator for one in response.fits if one.as_of is None]:
        output.console.print(
            f"no price is known for {' and '.join(unpriced)}: the model fits, but compare the prices at your cloud",
            markup=False,
        )
    if any(one.is_old for one in (*response.fits, *response.others)):
        output.console.print(OLD_NOTE, markup=False)
    if response.spot:
        output.console.print(
            "spot nodes suit this job: it saves checkpoints and is not urgent", markup=False
        )
    for reason in response.reasons:
        output.console.print(f"use on-demand nodes: {reason}", markup=False)


def _cells(one: CandidateOut) -> tuple[str, ...]:
    dearest = one.on_demand_micros_per_hour
    prices = [dearest, one.spot_micros_per_hour]
    response = ["unknown" if micros is None else money(micros) for micros in prices]
    rate = f"{one.peak_tflops / (dearest / 1e6):,.0f}" if dearest else "unknown"
    as_of = dated_as(one.as_of, is_old=one.is_old) if one.as_of else "-"
    return one.accelerator, str(one.peak_tflops), *response, rate, as_of
