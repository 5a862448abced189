"""Options that several commands share: the limits of a job."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Final, TypeAlias

import typer

from holdfast.errors import BadRequest

Limits: TypeAlias = dict[str, Any]
"""The limits given on the command line, as the API accepts them; None removes one."""
NO_LIMIT: Final = "none"
"""The value that removes a limit."""
INTEGER_LIMITS: Final = frozenset({"max_failures", "max_fruitless"})
"""Limits that are plain numbers, neither amounts nor durations."""

MaxCost = Annotated[
    str | None,
    typer.Option("--max-cost", metavar="USD", help="Maximum total cost of the nodes."),
]
MaxHourlyCost = Annotated[
    str | None,
    typer.Option("--max-hourly-cost", metavar="USD", help="Maximum cost of the nodes per hour."),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="TIME", help="Deadline, such as 48h after the submission."),
]
MaxDuration = Annotated[
    str | None,
    typer.Option("--max-duration", metavar="TIME", help="Maximum time with nodes, such as 72h."),
]
MaxWait = Annotated[
    str | None,
    typer.Option("--max-wait", metavar="TIME", help="Maximum uninterrupted time without nodes."),
]
MaxFailures = Annotated[
    str | None,
    typer.Option("--max-failures", metavar="N", help="Maximum number of failures of the program."),
]
MaxFruitless = Annotated[
    str | None,
    typer.Option("--max-fruitless", metavar="N", help="Maximum attempts without progress."),
]
MaxStall = Annotated[
    str | None,
    typer.Option(
        "--max-stall",
        metavar="TIME",
        help="Maximum time without a step; takes effect with the next launch.",
    ),
]


def with_options(name: str, parse: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Replace a parameter of a command by the parameters of `parse`, which returns its value.

    Typer reads options from the signature, so that commands cannot share them in another way.
    """
    options = inspect.signature(parse, eval_str=True).parameters

    def extended(command: Callable[..., Any]) -> Any:
        signature = inspect.signature(command, eval_str=True)
        parameters = list(signature.parameters.values())
        place = list(signature.parameters).index(name)
        parameters[place : place + 1] = options.values()

        @wraps(command)
        def called(*args: Any, **given: Any) -> Any:
            given[name] = parse(**{option: given.pop(option) for option in options})
            return command(*args, **given)

        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        del called.__wrapped__  # Typer must read the extended signature.
        return called

    return extended


def all_limits(
    *,
    max_cost_usd: MaxCost = None,
    max_hourly_cost_usd: MaxHourlyCost = None,
    deadline: Deadline = None,
    max_duration: MaxDuration = None,
    max_wait: MaxWait = None,
    max_failures: MaxFailures = None,
    max_fruitless: MaxFruitless = None,
    max_stall: MaxStall = None,
) -> Limits:
    """Return the given limits of all."""
    given = {
        "max_cost_usd": max_cost_usd,
        "max_hourly_cost_usd": max_hourly_cost_usd,
        "deadline": deadline,
        "max_duration": max_duration,
        "max_wait": max_wait,
        "max_failures": max_failures,
        "max_fruitless": max_fruitless,
        "max_stall": max_stall,
    }
    return {name: _parsed(name, value) for name, value in given.items() if value is not None}


def submission_limits(*, max_cost_usd: MaxCost = None, deadline: Deadline = None) -> Limits:
    """Return the given limits of those that a submission can override."""
    return all_limits(max_cost_usd=max_cost_usd, deadline=deadline)


def _parsed(name: str, value: str) -> str | int | None:
    if value == NO_LIMIT:
        return None
    if name not in INTEGER_LIMITS:
        return value
    try:
        return int(value)
    except ValueError as error:
        option = f"--{name.replace('_', '-')}"
        raise BadRequest(f"{option} {value}: write a whole number, or none") from error
