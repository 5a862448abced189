"""Commands for before anything runs: what a loss costs, how often to save, what fits a model."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.api.schemas.prices import AdviceOut, CadenceOut, CandidateOut, LossEstimateOut
from holdfast.cli import output
from holdfast.cli.jobs import connect
from holdfast.cli.output import AsJson, dated_as, money, span
from holdfast.errors import BadRequest

app = typer.Typer(help="Reckon before anything runs.", no_args_is_help=True)

OLD_NOTE = "(old) is older than 90 days: no newer price is known"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@app.command("loss")
def loss(
    *,
    at: Annotated[str, typer.Option("--at", help="When the failure comes, such as 67h.")],
    every: Annotated[
        str | None, typer.Option("--every", help="Between checkpoints, such as 4h. Default: none.")
    ] = None,
    usd_per_day: Annotated[
        float | None, typer.Option("--usd-per-day", min=0, help="What all nodes cost in a day.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="Of a node, such as A100:8, for today's price.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many such nodes.")] = 1,
    spot: Annotated[bool, typer.Option("--spot", help="At the price of spot nodes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a failure takes from a job, without checkpoints and with."""
    asked = {
        "at_hour": _seconds(at, "--at") / 3600,
        "every_hours": _seconds(every, "--every") / 3600 if every else None,
        "usd_per_day": usd_per_day,
        "accelerator": gpus,
        "nodes": nodes,
        "spot": spot,
    }
    params = {name: value for name, value in asked.items() if value is not None}
    with connect() as client:
        told = client.get(LossEstimateOut, "GET", "/v1/what-if/loss", params=params)
    if as_json:
        output.print_json(told)
        return
    mark = told.is_price_estimate
    day = money(told.micros_per_day, simulated=mark)
    dated = f", {dated_as(told.price_as_of, is_old=told.is_price_old)}" if told.price_as_of else ""
    output.console.print(f"{day} a day ({told.price_source}{dated})", markup=False)
    rows = [("without checkpoints", told.hours_without, told.micros_without, told.roughly_micros_without)]  # fmt: skip
    if every:
        rows.append((f"with one every {every}", told.hours_with, told.micros_with, told.roughly_micros_with))  # fmt: skip
    for what, hours, micros, roughly in rows:
        exact = money(micros, simulated=mark)
        output.console.print(
            f"{what:<22} at most {hours:g} h and {exact} (some ${roughly / 1e6:,.0f})", markup=False
        )


@app.command("cadence")
def cadence(
    *,
    cost: Annotated[
        str, typer.Option("--cost", help="How long a checkpoint stops training, such as 45s.")
    ],
    between: Annotated[
        str, typer.Option("--between-failures", help="How long nodes last on average, such as 3h.")
    ],
    every: Annotated[
        str | None, typer.Option("--every", help="An interval to judge, such as 30m.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how often to save. Workers with `every: auto` measure both, and do so by themselves."""
    params = {
        "cost_s": _seconds(cost, "--cost"),
        "between_failures_s": _seconds(between, "--between-failures"),
    } | ({"every_s": _seconds(every, "--every")} if every else {})
    with connect() as client:
        told = client.get(CadenceOut, "GET", "/v1/what-if/cadence", params=params)
    if as_json:
        output.print_json(told)
        return
    output.console.print(
        f"best: every {told.best_s / 60:.1f} min, with {told.waste:.1%} of all time wasted",
        markup=False,
    )
    if told.asked_waste is not None:
        output.console.print(f"every {every}: {told.asked_waste:.1%} wasted", markup=False)
    for kind, (low, high) in told.usual_s.items():
        habit = f"every {span(1000 * low)} to {span(1000 * high)}"
        output.console.print(f"{kind:<11} {habit} by habit", markup=False)


def advise(
    *,
    params: Annotated[str, typer.Option("--params", help="Size of the model, such as 7B.")],
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="Time that is left, such as 48h.")
    ] = None,
    no_checkpoints: Annotated[
        bool, typer.Option("--no-checkpoints", help="It does not save.")
    ] = False,
    critical: Annotated[bool, typer.Option("--critical", help="Somebody waits for it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which accelerators fit a model, what they cost now, and whether spot nodes fit the job."""
    asked: dict[str, str | float | bool] = {
        "params": params,
        "checkpoints": not no_checkpoints,
        "critical": critical,
    }
    if deadline:
        asked["hours_left"] = _seconds(deadline, "--deadline") / 3600
    with connect() as client:
        told = client.get(AdviceOut, "GET", "/v1/advice", params=asked)
    if as_json:
        output.print_json(told)
        return
    size = output.size(told.memory_bytes)
    output.console.print(f"{told.parameters:,} parameters: {size} with Adam, without activations")
    output.console.print(f"{told.how[:1].upper()}{told.how[1:]}.", markup=False)
    numbers = ("PEAK TFLOPS", "ON DEMAND", "SPOT", "TFLOPS PER $")
    table = output.table("", "GPU", *numbers, "AS OF", right=numbers)
    for fits, candidate in [(True, one) for one in told.fits] + [(False, c) for c in told.others]:
        table.add_row("✓" if fits else "", *_cells(candidate))
    output.print_table(table)
    if any(one.is_old for one in (*told.fits, *told.others)):
        output.console.print(OLD_NOTE, markup=False)
    if told.spot:
        output.console.print("spot nodes fit: it saves, and nobody waits for it", markup=False)
    for reason in told.reasons:
        output.console.print(f"take on-demand nodes: {reason}", markup=False)


def _cells(one: CandidateOut) -> tuple[str, ...]:
    dearest = one.on_demand_micros_per_hour
    prices = [dearest, one.spot_micros_per_hour]
    told = ["-" if micros is None else money(micros) for micros in prices]
    rate = f"{one.peak_tflops / (dearest / 1e6):,.0f}" if dearest else "-"
    as_of = dated_as(one.as_of, is_old=one.is_old) if one.as_of else "-"
    return one.accelerator, str(one.peak_tflops), *told, rate, as_of


def _seconds(text: str, option: str) -> float:
    number, unit = text[:-1], text[-1:]
    try:
        return float(number) * _UNITS[unit]
    except (ValueError, KeyError) as error:
        raise BadRequest(f"{option} {text}: write a time such as 45s, 30m, 4h or 3d") from error
