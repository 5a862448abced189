"""Limits on the command line: an option for each, the same with all commands that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Final, TypeAlias

import typer

from holdfast.errors import BadRequest

Changes: TypeAlias = dict[str, Any]
"""Limits that were named, as the API takes them."""


def _option(name: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002 - as typer calls it
    return Annotated[str | None, typer.Option(name, help=help, metavar=metavar)]


AWAY: Final = "none"
"""Takes a limit away."""
WHOLE: Final = frozenset({"max_failures", "max_fruitless"})
"""Limits that are numbers, and neither sums nor times."""
OPTIONS: Final = {
    "max_cost_usd": _option("--max-cost", "What its nodes may cost in all.", "USD"),
    "max_hourly_cost_usd": _option("--max-hourly-cost", "What they may cost in an hour.", "USD"),
    "deadline": _option("--deadline", "When it has to be over, such as 48h after its submission."),
    "max_duration": _option("--max-duration", "How long it may have nodes, such as 72h."),
    "max_wait": _option("--max-wait", "How long it may be without nodes at a stretch."),
    "max_failures": _option("--max-failures", "How often the program may fail.", "N"),
    "max_fruitless": _option("--max-fruitless", "Placements that may come no further.", "N"),
    "max_stall": _option("--max-stall", "How long no step may be made; from the next launch on."),
}


def with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each limit; what was named of them it gets as `limits`.

    Typer reads the options of a command from its signature, and knows none that are made of others.
    """
    signature = inspect.signature(command, eval_str=True)
    named = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(n, named, default=None, annotation=o) for n, o in OPTIONS.items()]
    parameters = list(signature.parameters.values())
    place = list(signature.parameters).index("limits")

    @wraps(command)
    def taking(*args: Any, **given: Any) -> None:
        limits = _changes({name: given.pop(name) for name in OPTIONS})
        command(*args, limits=limits, **given)

    parameters[place : place + 1] = options
    taking.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    taking.__annotations__ = {each.name: each.annotation for each in parameters}
    del taking.__wrapped__  # Its own signature is what is meant.
    return taking


def _changes(given: dict[str, str | None]) -> Changes:
    named = {name: value for name, value in given.items() if value is not None}
    return {name: None if value == AWAY else _typed(name, value) for name, value in named.items()}


def _typed(name: str, value: str) -> str | int:
    if name not in WHOLE:
        return value
    try:
        return int(value)
    except ValueError as error:
        option = f"--{name.replace('_', '-')}"
        raise BadRequest(f"{option} {value}: write a whole number, or none") from error
