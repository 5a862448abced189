"""Output of commands: tables, amounts, times, JSON, errors and launcher warnings."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Protocol

import typer
from pydantic import BaseModel, TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.api.schemas.service import FlawOut, LauncherOut
from holdfast.client import Client, Refused, ServiceUnreachable
from holdfast.clock import SystemClock
from holdfast.errors import BadJobFile, BadRequest, HoldfastError

Since = Annotated[str | None, typer.Option("--since", help="First day in UTC: 2026-03-01, or 30d.")]
Until = Annotated[
    str | None, typer.Option("--until", help="Last day in UTC, in the format of --since.")
]
OnlyProject = Annotated[str | None, typer.Option("--project", help="Only this project.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

STATES: Final = (
    "queued",
    "provisioning",
    "starting",
    "training",
    "degraded",
    "recovering",
    "moving",
    "pausing",
    "paused",
    "stopping",
    "succeeded",
    "failed",
    "cancelled",
)
"""The states of a job."""
GLYPHS: Final = {
    "queued": "·",
    "provisioning": "◌",
    "starting": "◔",
    "training": "●",
    "degraded": "◑",
    "recovering": "↺",
    "moving": "⇄",
    "pausing": "◧",
    "paused": "‖",
    "stopping": "◼",
    "succeeded": "✓",
    "failed": "✗",
    "cancelled": "-",
    "complete": "✓",
    "superseded": "○",
    "damaged": "!",
    "abandoned": "↳",
    "removed": "-",
}
STYLES: Final = {
    "training": "cyan",
    "succeeded": "green",
    "failed": "red",
    "degraded": "yellow",
    "recovering": "yellow",
    "moving": "yellow",
    "paused": "yellow",
    "cancelled": "dim",
    "complete": "green",
    "damaged": "red",
    "abandoned": "yellow",
    "removed": "dim",
}

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: BaseModel | Sequence[BaseModel] | dict[str, Any]) -> None:
    """Print one JSON document on standard output."""
    typer.echo(
        json.dumps(TypeAdapter(Any).dump_python(value, mode="json"), indent=2, ensure_ascii=False)
    )


def print_line(value: BaseModel) -> None:
    """Print one JSON document on one line and flush, for streams."""
    typer.echo(value.model_dump_json())
    sys.stdout.flush()


def echo(text: str) -> None:
    """Print a sentence on standard error, so that standard output holds only the requested data."""
    errors.print(text, markup=False)


def error(error: HoldfastError) -> None:
    """Print an error and its locations."""
    flaws: Sequence[FlawOut] = ()
    if isinstance(error, BadJobFile):
        flaws = [FlawOut(pointer=flaw.pointer, message=flaw.message) for flaw in error.issues]
    elif isinstance(error, Refused):
        flaws = error.problem.errors
    if not flaws:
        echo(f"holdfast: {error.detail}")
    elif isinstance(error, Refused) and error.problem.type.endswith("#bad-request"):
        for (
            flaw
        ) in flaws:  # The title describes the schema of the API, which the command line hides.
            echo(f"holdfast: {flaw.pointer.removeprefix('#/')}: {_sentence(flaw.message)}")
    else:
        title = error.problem.title if isinstance(error, Refused) else error.title()
        echo(f"holdfast: {title}")
        for flaw in flaws:
            echo(f"  {flaw.pointer}: {flaw.message}")


def _sentence(message: str) -> str:
    """Rephrase a message of pydantic."""
    return (message[:1].lower() + message[1:]).replace("input should be", "must be")


def refused(error: ValidationError) -> BadRequest:
    """Convert a validation error of the command line into BadRequest."""
    flaw = error.errors(include_input=False)[0]
    place = ".".join(map(str, flaw["loc"]))
    if (
        flaw["type"] == "string_unicode"
    ):  # Python reads each byte that is not UTF-8 as half a surrogate pair.
        return BadRequest(f"{place}: is not UTF-8; write or rename it in UTF-8")
    return BadRequest(f"{place}: {_sentence(flaw['msg'])}")


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Create an empty table. Columns named in `right` hold numbers; ids are never truncated."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", no_wrap=True, overflow="ignore"
        )
    return made


def print_table(made: Table) -> None:
    """Print a table at its full width: a narrow terminal wraps it, nothing is truncated."""
    Console(highlight=False, width=max(console.width, 240)).print(made)


def state(word: str) -> Text:
    """Format a state with its symbol, so that it does not depend on color."""
    return Text(f"{GLYPHS.get(word, '?')} {word}", style=STYLES.get(word, ""))


def money(micros: int, *, simulated: bool = False) -> str:
    """Format micro-dollars, with four decimals below one dollar.

    `~` marks simulated or estimated prices.
    """
    dollars = micros / 1_000_000
    text = f"${abs(dollars):,.2f}" if abs(dollars) >= 1 else f"${abs(dollars):.4f}"
    return f"{'~' if simulated else ''}{'-' if micros < 0 else ''}{text}"


def dated_as(as_of: datetime, *, is_old: bool) -> str:
    """Format the date of a price, marked if the price is too old for comparisons."""
    return f"{as_of:%Y-%m-%d}{' (old)' * is_old}"


def saved(micros: int, *, simulated: bool = False) -> str:
    """Format the savings against on-demand prices, or the extra cost."""
    word = "overpaid" if micros < 0 else "saved"
    return f"{word} {money(abs(micros), simulated=simulated)}"


def brief(value: Any) -> str:
    """Abbreviate a value of a manifest for a table."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)


class Priced(Protocol):
    """A total whose prices may be simulated or estimated."""

    simulated: bool
    is_price_estimate: bool


def marks(*sums: Priced) -> list[str]:
    """Explain the `~` marks of the totals, one line each."""
    simulated = any(each.simulated for each in sums)
    guessed = any(each.is_price_estimate for each in sums)
    lines = ["~ some prices are simulated: local processes, nothing is billed"] if simulated else []
    return lines + ["~ some prices are unknown and assumed high"] * guessed


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 step`, `2,000 steps`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def span(ms: int) -> str:
    """Format a duration in its two largest units."""
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def timestamp(at: datetime) -> str:
    """Format a date and time in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def clock(at: datetime) -> str:
    """Format a time of day in UTC."""
    return f"{at.astimezone(UTC):%H:%M:%S}Z"


def age(at: datetime) -> str:
    """Format the age of a time by the clock of this machine, in its two largest units."""
    gone = max(timedelta(), SystemClock().now() - at)
    if gone < timedelta(days=2):
        return span(round(gone.total_seconds() * 1000))
    return f"{gone.days} d {gone.seconds // 3600:02d} h"


def size(count: int) -> str:
    """Format a number of bytes in a suitable unit."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def steps(step: int, total: int | None) -> str:
    """Format progress as `step/total`, or the step alone if the total is unknown."""
    return f"{step:,}/{total:,}" if total is not None else f"{step:,}"


NAMES = {"skypilot": "SkyPilot", "slurm": "Slurm"}


def warn_stale_launchers(client: Client) -> None:
    """Warn on standard error about launchers that do not respond; silent with an older service."""
    try:
        launchers = client.service.launchers()
    except (Refused, ServiceUnreachable):
        return  # The command itself has succeeded; this warning is optional.
    for launcher in launchers:
        if launcher.trouble and launcher.since:
            echo(f"! {sentence(launcher)}")


def sentence(launcher: LauncherOut) -> str:
    """Describe the failure of a launcher and its start."""
    assert launcher.since
    name = NAMES.get(launcher.engine, launcher.engine)
    return (
        f"{name} has not responded since {timestamp(launcher.since)}; "
        f"the data below may be out of date: {launcher.trouble}"
    )
