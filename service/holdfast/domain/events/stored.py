"""Facts as they are stored: every kind by its name, and its body as JSON."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any, Final, TypeAlias, get_args

from pydantic import TypeAdapter

from holdfast.domain.events.asked import (
    CancelRequested,
    LimitsChanged,
    PauseRequested,
    ResumeRequested,
    RunsCompared,
    Submitted,
)
from holdfast.domain.events.fact import Source
from holdfast.domain.events.intent import GuardTripped, LaunchRequested
from holdfast.domain.events.placement import LauncherFact, PriceChanged
from holdfast.domain.events.told import WorkerFact
from holdfast.domain.events.upkeep import CheckpointsRemoved

Event: TypeAlias = (
    Submitted
    | CancelRequested
    | PauseRequested
    | ResumeRequested
    | LimitsChanged
    | LaunchRequested
    | GuardTripped
    | LauncherFact
    | PriceChanged
    | WorkerFact
    | CheckpointsRemoved
    | RunsCompared
)

KINDS: Final[dict[str, type[Event]]] = {kind.__name__: kind for kind in get_args(Event)}
"""Every event by the name under which it is stored. A name, once written to a log, is never reused."""

WORKER_KINDS: Final = frozenset(
    kind for kind, event in KINDS.items() if event.source is Source.WORKER
)
_NAMES: Final = {cls: frozenset(item.name for item in fields(cls)) for cls in KINDS.values()}
_ADAPTERS: Final = {kind: TypeAdapter[Any](kind) for kind in KINDS.values()}


def encode(event: Event) -> dict[str, Any]:
    """The body of an event as JSON values; its kind, source and `at` are columns of their own."""
    body: dict[str, Any] = _ADAPTERS[type(event)].dump_python(event, mode="json")
    del body["at"]
    return body


def decode(kind: str, at: datetime, body: dict[str, Any]) -> Event:
    """The event of a stored row.

    Raises:
        KeyError: the kind was never an event of Holdfast.
        pydantic.ValidationError: the body does not fit the kind.
    """
    cls = KINDS[kind]
    event: Event = _ADAPTERS[cls].validate_python(
        {**{k: v for k, v in body.items() if k in _NAMES[cls]}, "at": at}
    )
    return event
