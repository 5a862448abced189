"""What people and programs are shown: tables, money, times, JSON, complaints.

One line above what a person asked for, when the service cannot see what it is telling about.
"""

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

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

GLYPHS: Final = {
    "queued": "·",
    "provisioning": "◌",
    "starting": "◔",
    "training": "●",
    "recovering": "↺",
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
    "recovering": "yellow",
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
    """One JSON document on standard output."""
    typer.echo(
        json.dumps(TypeAdapter(Any).dump_python(value, mode="json"), indent=2, ensure_ascii=False)
    )


def print_line(value: BaseModel) -> None:
    """One JSON document on one line, at once: for streams."""
    typer.echo(value.model_dump_json())
    sys.stdout.flush()


def echo(text: str) -> None:
    """A sentence for people, on standard error, so that standard output stays what was asked for."""
    errors.print(text, markup=False)


def error(error: HoldfastError) -> None:
    """What went wrong, and where."""
    flaws: Sequence[FlawOut] = ()
    if isinstance(error, BadJobFile):
        flaws = [FlawOut(pointer=flaw.pointer, message=flaw.message) for flaw in error.flaws]
    elif isinstance(error, Refused):
        flaws = error.problem.errors
    if flaws:
        title = error.problem.title if isinstance(error, Refused) else error.title()
        echo(f"holdfast: {title}")
        for flaw in flaws:
            echo(f"  {flaw.pointer}: {flaw.message}")
    else:
        echo(f"holdfast: {error.detail}")


def refused(error: ValidationError) -> BadRequest:
    """What was said on the command line, and cannot be sent."""
    flaw = error.errors(include_input=False)[0]
    place = ".".join(map(str, flaw["loc"]))
    if flaw["type"] == "string_unicode":  # Python reads each byte that is not UTF-8 as half a pair.
        return BadRequest(f"{place}: is not UTF-8; write or rename it in UTF-8")
    message = flaw["msg"]
    return BadRequest(f"{place}: {message[:1].lower()}{message[1:]}")


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table; columns named in `right` hold numbers. Ids are never cut."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", no_wrap=True, overflow="ignore"
        )
    return made


def print_table(made: Table) -> None:
    """A table at its own width: a narrow terminal wraps its lines, a pipe gets them whole; nothing is cut."""
    Console(highlight=False, width=max(console.width, 240)).print(made)


def state(word: str) -> Text:
    """A state with its sign; never colour alone."""
    return Text(f"{GLYPHS.get(word, '?')} {word}", style=STYLES.get(word, ""))


def money(micros: int, *, simulated: bool = False) -> str:
    """Dollars, four decimals below one dollar; `~` marks prices that are simulated or estimated."""
    dollars = micros / 1_000_000
    text = f"${abs(dollars):,.2f}" if abs(dollars) >= 1 else f"${abs(dollars):.4f}"
    return f"{'~' if simulated else ''}{'-' if micros < 0 else ''}{text}"


def dated_as(as_of: datetime, *, is_old: bool) -> str:
    """The day of a price, marked where the price is too old to be compared with others."""
    return f"{as_of:%Y-%m-%d}{' (old)' * is_old}"


def saved(micros: int, *, simulated: bool = False) -> str:
    """What a job saved against prices on demand, or what it cost more than those."""
    word = "overpaid" if micros < 0 else "saved"
    return f"{word} {money(abs(micros), simulated=simulated)}"


def brief(value: Any) -> str:
    """A value of a manifest in a table."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)


class Priced(Protocol):
    """A sum that tells what its prices are."""

    simulated: bool
    is_price_estimate: bool


def marks(*sums: Priced) -> list[str]:
    """What `~` before some of these sums says, a line each."""
    simulated = any(each.simulated for each in sums)
    guessed = any(each.is_price_estimate for each in sums)
    lines = ["~ some prices are simulated, and nobody pays them"] if simulated else []
    return lines + ["~ nobody told some of the prices; they are taken to be high"] * guessed


def span(ms: int) -> str:
    """A duration in the two units that matter."""
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def moment(at: datetime) -> str:
    """A date and a time of day in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def clock(at: datetime) -> str:
    """A time of day in UTC."""
    return f"{at.astimezone(UTC):%H:%M:%S}Z"


def age(at: datetime) -> str:
    """How long ago something was, by the clock of this machine, in the two units that matter."""
    gone = max(timedelta(), SystemClock().now() - at)
    if gone < timedelta(days=2):
        return span(round(gone.total_seconds() * 1000))
    return f"{gone.days} d {gone.seconds // 3600:02d} h"


def size(count: int) -> str:
    """Bytes in the unit that fits."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def steps(step: int, total: int | None) -> str:
    """How far: `step/total`, or the step alone where the end is not known."""
    return f"{step:,}/{total:,}" if total is not None else f"{step:,}"


NAMES = {"skypilot": "SkyPilot", "slurm": "Slurm"}


def warn_stale_launchers(client: Client) -> None:
    """Say on standard error which engines do not answer; nothing where all do, or where the service is older."""
    try:
        launchers = client.launchers()
    except (Refused, ServiceUnreachable):
        return  # What was asked for has been answered; this is only beside it.
    for launcher in launchers:
        if launcher.trouble and launcher.since:
            echo(f"! {sentence(launcher)}")


def sentence(launcher: LauncherOut) -> str:
    """What is wrong with a launcher, and since when."""
    assert launcher.since
    name = NAMES.get(launcher.engine, launcher.engine)
    return (
        f"{name} cannot be asked since {moment(launcher.since)}; nothing is concluded from its silence, "
        f"and what is shown may be older: {launcher.trouble}"
    )
