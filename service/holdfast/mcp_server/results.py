"""What a tool returns: bounded JSON, and errors as sentences."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, ParamSpec

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import TypeAdapter

from holdfast.api.schemas.jobs import EventOut, JobOut
from holdfast.errors import HoldfastError

P = ParamSpec("P")

MAX_RESULT_CHARS: Final = 20_000
"""Maximum characters of a result.

A lower value hides more; a higher value fills the context of the model.
"""
MAX_VALUE_CHARS: Final = 2_000
"""Maximum characters of one text in a result, such as an error message.

A lower value cuts tracebacks; a higher value lets one of them displace everything else.
"""
_CUT: Final = " ... (cut)"
_OLDEST_FIRST: Final = frozenset({"events", "history", "lines"})
"""Lists whose last items matter most."""
_HIDDEN: Final = frozenset({"spec", "task"})
"""Fields of events that hold the whole job file, whose `envs` may contain what its author keeps private."""


def tool(function: Callable[P, Awaitable[Any]]) -> Callable[P, Awaitable[str]]:
    """Make a tool of a function: its result becomes bounded JSON, its error a sentence."""

    @functools.wraps(function)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return bounded_json(await function(*args, **kwargs))
        except HoldfastError as error:
            raise ToolError(error_text(error)) from error

    return wrapped


def error_text(error: HoldfastError) -> str:
    """An error with all mistakes and the remedy, for a reader that sees nothing else."""
    lines = [f"{error.code}: {error.detail}"]
    if len(error.issues) > 1:
        lines += [f"{issue.pointer}: {issue.message}" for issue in error.issues]
    if error.hint not in error.detail:
        lines.append(error.hint)
    return _cut("\n".join(lines), MAX_RESULT_CHARS)


def bounded_json(value: Any) -> str:
    """The value as JSON of at most `MAX_RESULT_CHARS`; the longest list is shortened first."""
    data = _shortened(TypeAdapter(Any).dump_python(value, mode="json", exclude_none=True))
    text = json.dumps(data, ensure_ascii=False)
    while len(text) > MAX_RESULT_CHARS and (longest := _longest_list(data)):
        holder, name = longest
        items = holder[name]
        keep = min(len(items) - 1, max(1, len(items) * MAX_RESULT_CHARS // len(text)))
        holder[f"{name}_left_out"] = holder.get(f"{name}_left_out", 0) + len(items) - keep
        holder[name] = items[-keep:] if name in _OLDEST_FIRST else items[:keep]
        text = json.dumps(data, ensure_ascii=False)
    return _cut(text, MAX_RESULT_CHARS)


def _shortened(data: Any) -> Any:
    """Cut each long text, and put a list into an object that can say what was left out."""
    if isinstance(data, list):
        data = {"items": data}
    return _with_short_texts(data)


def _with_short_texts(data: Any) -> Any:
    match data:
        case str():
            return _cut(data, MAX_VALUE_CHARS)
        case dict():
            return {name: _with_short_texts(value) for name, value in data.items()}
        case list():
            return [_with_short_texts(value) for value in data]
        case _:
            return data


def _longest_list(data: Any) -> tuple[dict[str, Any], str] | None:
    """The list of more than one item with the longest text, with the object that holds it."""
    found: list[tuple[int, dict[str, Any], str]] = []

    def search(value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if isinstance(inner, list) and len(inner) > 1:
                    found.append((len(json.dumps(inner)), value, name))
                search(inner)
        elif isinstance(value, list):
            for inner in value:
                search(inner)

    search(data)
    _, holder, name = max(found, key=lambda each: each[0], default=(0, {}, ""))
    return (holder, name) if name else None


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - len(_CUT)] + _CUT


def summary(job: JobOut) -> dict[str, Any]:
    """What a list shows of a job."""
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "detail": job.detail or None,
        "project": job.project,
        "owner": job.owner,
        "step": job.step,
        "total_steps": job.total_steps,
        "where": job.zone,
        "preemptions": job.preemptions,
        "failures": job.failures,
        "paid_usd": job.paid_micros / 1e6,
        "on_demand_usd": job.on_demand_micros / 1e6,
        "prices_are_simulated": job.simulated or None,
        "submitted_at": job.submitted_at,
        "ended_at": job.ended_at,
        "last_checkpoint_step": job.last_checkpoint_step,
        "warning": job.warning,
        "trouble": job.trouble,
    }


def event_rows(events: Sequence[EventOut]) -> list[dict[str, Any]]:
    """Events without the job file that they carry."""
    return [
        {
            "at": event.at,
            "source": event.source,
            "kind": event.kind,
            **{name: value for name, value in event.body.items() if name not in _HIDDEN},
        }
        for event in events
    ]
