"""The command `plan`: the forecast of a job file, or the plan of a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from holdfast.api.schemas.plans import (
    ForecastOut,
    JobPlanOut,
    PlanAlternativeOut,
    PlanChoiceOut,
    PlanIn,
    PlanPlaceOut,
    PlanPreviewOut,
)
from holdfast.cli import output
from holdfast.cli.jobs import connect, task_of
from holdfast.cli.output import AsJson, money, timestamp
from holdfast.cli.usage.job_argument import completed_jobs
from holdfast.client import Client
from holdfast.client.credentials import Credentials
from holdfast.errors import BadRequest
from holdfast.settings import read_settings

SHOWN_CHOICES: Final = 10
"""Choices that are printed. A lower value hides the day; a higher value hides the sentence above them."""
_YAML: Final = (".yaml", ".yml")
_NAMES: Final = {"ours": "this plan", "spot": "spot only", "on_demand": "on-demand only"}

FileOrJob = Annotated[
    str,
    typer.Argument(
        metavar="FILE|JOB",
        help="Job file (- reads standard input), or id or name of a job.",
        autocompletion=completed_jobs,
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="TIME", help="Deadline instead of the file's, such as 48h."),
]
MaxCost = Annotated[
    str | None,
    typer.Option("--max-cost", metavar="USD", help="Maximum cost instead of the file's."),
]
Objective = Annotated[
    str | None,
    typer.Option("--objective", metavar="cheapest|fastest", help="Objective of the plan."),
]
Work = Annotated[
    str | None,
    typer.Option(
        "--work", metavar="TIME", help="Training time without interruptions, such as 31h."
    ),
]


def plan(
    subject: FileOrJob,
    *,
    deadline: Deadline = None,
    max_cost: MaxCost = None,
    objective: Objective = None,
    work: Work = None,
    as_json: AsJson = False,
) -> None:
    """Estimate cost and end of a job file, or show where a job runs next and why."""
    given = {"deadline": deadline, "max_cost_usd": max_cost, "objective": objective, "work": work}
    with connect() as client:
        if is_file(subject):
            _preview(client, Path(subject), given, as_json=as_json)
            return
        if wrong := next((word for word, value in given.items() if value is not None), None):
            option = {"max_cost_usd": "--max-cost"}.get(wrong, f"--{wrong}")
            raise BadRequest(
                f"{option}: {subject} is a job, whose plan follows from its file; change its limits with: holdfast limits"
            )
        job_id = client.jobs.resolve(subject)
        found = client.jobs.plan(job_id)
    if as_json:
        output.print_json(found)
    else:
        _print_plan(found)


def is_file(subject: str) -> bool:
    """Whether an argument is a job file, and not a job."""
    return subject == "-" or subject.endswith(_YAML) or Path(subject).is_file()


def _preview(client: Client, file: Path, given: dict[str, str | None], *, as_json: bool) -> None:
    task = task_of(file, None, None, None)
    task.default_project = Credentials.read(read_settings().login_file).project
    try:
        asked = PlanIn.model_validate({**task.model_dump(exclude_unset=True), **given})
    except ValidationError as error:
        raise output.refused(error) from error
    found = client.market.forecast(asked)
    if as_json:
        output.print_json(found)
    else:
        _print_preview(found)


def _print_preview(found: PlanPreviewOut) -> None:
    if found.alternatives:
        _print_alternatives(found.alternatives)
        output.console.print()
    _print_places(found.places)
    output.console.print()
    known = output.counted(found.observations, "observation")
    _print_line(f"{found.sentence or 'no forecast'}; it rests on {known} of these places")
    for note in found.notes:
        output.echo(f"note: {note}")
    for refusal in found.refusals:
        output.echo(f"! {refusal}")
    if found.refusals:
        output.echo("! holdfast submit refuses this without --force")


def _print_alternatives(alternatives: Sequence[PlanAlternativeOut]) -> None:
    right = ("COST P10", "P50", "P90", "LATE", "OVER BUDGET", "PREEMPTIONS", "LOST WORK")
    table = output.table("NODES", *right[:3], "END P50", "END P90", *right[3:], right=right)
    for one in alternatives:
        table.add_row(
            _NAMES.get(one.name, one.name),
            *_costs(one),
            timestamp(one.end_at.p50),
            timestamp(one.end_at.p90),
            f"{one.late:.0%}",
            f"{one.over_budget:.0%}",
            f"{one.preemptions:.1f}",
            output.span(round(1000 * one.lost_work_s)),
        )
    output.print_table(table)


def _costs(forecast: ForecastOut) -> list[str]:
    cost = forecast.cost_micros
    return [money(micros) for micros in (cost.p10, cost.p50, cost.p90)]


def _print_places(places: Sequence[PlanPlaceOut]) -> None:
    right = ("SPOT/H", "ON DEMAND/H", "OBSERVATIONS")
    table = output.table("PLACE", *right[:2], "SPOT SEEN", right[2], right=right)
    for place in places:
        mark = place.is_price_estimate
        prices = (place.spot_micros_per_hour, place.on_demand_micros_per_hour)
        table.add_row(
            place.name,
            *("-" if micros is None else money(micros, simulated=mark) for micros in prices),
            _seen(place),
            str(place.observations),
        )
    output.print_table(table)
    if any(place.is_price_estimate for place in places):
        _print_line("~ some prices are unknown and assumed high")


def _seen(place: PlanPlaceOut) -> str:
    if place.is_available is None or place.seen_at is None:
        return "never"
    return f"{'there' if place.is_available else 'gone'} {timestamp(place.seen_at)}"


def _print_plan(found: JobPlanOut) -> None:
    _print_line(found.sentence)
    rows = {
        "next": found.next,
        "work": f"{_hours(found.saved_s)} of {_hours(found.work_s)} saved",
        "deadline": _deadline(found),
        "cost": _cost(found),
        "forecast": _forecast(found.forecast),
        "at first": _forecast(found.first_forecast),
    }
    for label, value in rows.items():
        if value:
            _print_line(f"  {label:<9} {value}")
    if found.choices:
        output.console.print()
        _print_choices(found.choices[:SHOWN_CHOICES])
    if found.choices_next is not None or len(found.choices) > SHOWN_CHOICES:
        output.echo(f"only the newest {SHOWN_CHOICES} choices are shown; --json prints more")


def _deadline(found: JobPlanOut) -> str | None:
    if found.deadline_at is None:
        return None
    slack = "" if found.slack_s is None else f", {_hours(found.slack_s)} of slack"
    return f"{timestamp(found.deadline_at)}{slack}"


def _cost(found: JobPlanOut) -> str:
    budget = "" if found.budget_micros is None else f" of at most {money(found.budget_micros)}"
    return f"paid {money(found.paid_micros)}{budget}"


def _forecast(forecast: ForecastOut | None) -> str | None:
    if forecast is None:
        return None
    low, usual, high = _costs(forecast)
    return (
        f"{usual} ({low} to {high}), done {timestamp(forecast.end_at.p50)} (P90 {timestamp(forecast.end_at.p90)}), "
        f"{forecast.late:.0%} late; made {timestamp(forecast.at)}"
    )


def _print_choices(choices: Sequence[PlanChoiceOut]) -> None:
    table = output.table("FROM", "UNTIL", "CHOICE", "MOVED", "LATE", right=("LATE",))
    for one in choices:
        table.add_row(
            timestamp(one.at),
            _until(one.until),
            one.sentence,
            "yes" if one.moved else "",
            "-" if one.late is None else f"{one.late:.0%}",
        )
    output.print_table(table)


def _until(at: datetime | None) -> str:
    return "now" if at is None else timestamp(at)


def _hours(seconds: float) -> str:
    sign = "-" if seconds < 0 else ""
    return f"{sign}{output.span(round(1000 * abs(seconds)))}"


def _print_line(text: str) -> None:
    output.console.print(text, markup=False)
