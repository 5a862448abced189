"""Options of `simulate`, and their values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from holdfast.errors import BadRequest

TermValues: TypeAlias = dict[str, Any]
"""Values of the fields of `holdfast.domain.planning.replay.Terms`, which needs NumPy."""
APART, TOGETHER = "apart", "together"
ALL, OWN = "all", "own"
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Work = Annotated[
    str, typer.Option("--work", metavar="TIME", help="Training time without losses, such as 48h.")
]
Deadlines = Annotated[
    list[str],
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="Time until the deadline, such as 52h, or 1.1x of the work.",
    ),
]
Changeover = Annotated[
    str,
    typer.Option("--changeover", metavar="TIME", help="Time without progress after each start."),
]
SpotPrice = Annotated[
    float | None, typer.Option("--spot-price", metavar="USD", help="Price per hour of spot nodes.")
]
OnDemandPrice = Annotated[
    float,
    typer.Option("--on-demand-price", metavar="USD", help="Price per hour of on-demand nodes."),
]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="NAME", help="Policy to run; all but optimal by default."),
]
Gang = Annotated[int, typer.Option("--gang", min=1, help="Number of nodes needed at once.")]
Windows = Annotated[
    Path | None,
    typer.Option("--windows", help="CSV of starts: trace, start_index, length_ticks."),
]
Starts = Annotated[
    int | None, typer.Option("--starts", min=1, help="Starts in each trace. Default: 20.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Random starts instead of even ones.")
]
Zones = Annotated[
    str,
    typer.Option(
        "--zones",
        metavar="apart|together",
        help="Replay zones one by one, or together as the places of one job.",
    ),
]
Prices = Annotated[
    Path | None,
    typer.Option("--prices", help="JSON of spot prices for each tick of each trace."),
]
EgressPrice = Annotated[
    float,
    typer.Option("--egress-usd-per-gb", min=0, metavar="USD", help="Price of moves by region."),
]
CheckpointSize = Annotated[
    float, typer.Option("--checkpoint-gb", min=0, metavar="GB", help="Size of what moves.")
]
Sight = Annotated[
    str,
    typer.Option(
        "--sight",
        metavar="all|own",
        help="Visible spot availability: all, or what own launches meet.",
    ),
]
OnDemandWait = Annotated[
    str, typer.Option("--on-demand-wait", metavar="TIME", help="Wait for on-demand nodes.")
]
Notice = Annotated[
    str,
    typer.Option("--notice", metavar="TIME", help="Time from the notice to the loss of nodes."),
]
MaxCost = Annotated[
    float | None, typer.Option("--max-cost", metavar="USD", help="Budget of a run, for fastest.")
]
LostWork = Annotated[
    str,
    typer.Option("--lost-work", metavar="TIME", help="Progress lost with nodes without notice."),
]
Forecasts = Annotated[
    bool,
    typer.Option("--forecast", help="Forecast each run from the days before, and compare."),
]
Rows = Annotated[
    Path | None, typer.Option("--rows", help="Write a CSV file with one line for each run.")
]


def replay_terms(
    *,
    on_demand_price: OnDemandPrice,
    egress_usd_per_gb: EgressPrice = 0.0,
    checkpoint_gb: CheckpointSize = 0.0,
    sight: Sight = ALL,
    on_demand_wait: OnDemandWait = "0s",
    notice: Notice = "0s",
    lost_work: LostWork = "0s",
    max_cost: MaxCost = None,
) -> TermValues:
    """Return the prices and conditions of all runs."""
    check_word("--sight", sight, ALL, OWN)
    check_price("--on-demand-price", on_demand_price)
    if max_cost is not None and not 0 < max_cost < math.inf:
        raise BadRequest(f"--max-cost {max_cost}: write USD above 0")
    notice_s, lost_s = duration_s("--notice", notice), duration_s("--lost-work", lost_work)
    egress_usd = egress_usd_per_gb * checkpoint_gb
    if not math.isfinite(egress_usd):
        raise BadRequest(f"--egress-usd-per-gb {egress_usd_per_gb}: write USD per GB")
    return {
        "on_demand_usd_per_hour": on_demand_price,
        "egress_usd": egress_usd,
        "sees_all": sight == ALL,
        "on_demand_wait_s": duration_s("--on-demand-wait", on_demand_wait),
        # With a notice, what was done before it is saved.
        "lost_work_s": min(lost_s, notice_s) if notice_s else lost_s,
        "budget_usd": math.inf if max_cost is None else max_cost,
    }


def check_word(option: str, word: str, *words: str) -> None:
    """Check that an option has one of some values.

    Raises:
        BadRequest: It has another value.
    """
    if word not in words:
        raise BadRequest(f"{option} {word}: write {' or '.join(words)}")


def check_price(option: str, price: float) -> None:
    """Check a price in USD per hour.

    Raises:
        BadRequest: It is not above 0.
    """
    if not 0 < price < math.inf:
        raise BadRequest(f"{option} {price}: write USD per hour above 0")


def work_s(text: str) -> float:
    """The seconds of the work.

    Raises:
        BadRequest: It is no time above 0.
    """
    seconds = duration_s("--work", text)
    if seconds <= 0:
        raise BadRequest(f"--work {text}: write a time above 0, such as 48h")
    return seconds


def deadline_s(text: str, work_s: float) -> float:
    """The seconds until a deadline: a time, or a multiple of the work.

    Raises:
        BadRequest: It is neither.
    """
    if not text.endswith("x"):
        return duration_s("--deadline", text)
    try:
        factor = float(text[:-1])
    except ValueError:
        factor = math.nan
    if not 1 <= factor < math.inf:
        raise BadRequest(f"--deadline {text}: write a multiple of the work above 1, such as 1.25x")
    return factor * work_s


def duration_s(option: str, text: str) -> float:
    """The seconds of a duration.

    Raises:
        BadRequest: It is no duration.
    """
    number, unit = text[:-1], text[-1:]
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise BadRequest(f"{option} {text}: write a time such as 45s, 30m, 4h or 3d")
    return seconds
