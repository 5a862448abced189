"""Event codec: stored events are a kind (the class name) and a JSON body."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any, Final, TypeAlias, get_args

from pydantic import TypeAdapter, ValidationError

from holdfast.domain.events.base import Source, UnknownEvent
from holdfast.domain.events.launcher import LauncherFact, PriceChanged
from holdfast.domain.events.planning import PlanFact
from holdfast.domain.events.requests import RequestFact
from holdfast.domain.events.service import ServiceFact
from holdfast.domain.events.worker import WorkerFact

Event: TypeAlias = (
    RequestFact | LauncherFact | PriceChanged | WorkerFact | ServiceFact | PlanFact | UnknownEvent
)

KINDS: Final[dict[str, type[Event]]] = {
    kind.__name__: kind for kind in get_args(Event) if kind is not UnknownEvent
}
"""Event classes by stored name. A name once written to a log is never reused."""

WORKER_KINDS: Final = frozenset(
    kind for kind, event in KINDS.items() if event.source is Source.WORKER
)
_NAMES: Final = {cls: frozenset(item.name for item in fields(cls)) for cls in KINDS.values()}
_NEWER: Final = frozenset({"enum", "literal_error"})
"""Validation errors that occur if a newer version added an enum value."""
_ADAPTERS: Final = {kind: TypeAdapter[Any](kind) for kind in KINDS.values()}


def encode(event: Event) -> dict[str, Any]:
    """The body of an event as JSON values; kind, source and `at` are separate columns."""
    if isinstance(event, UnknownEvent):
        return event.body
    body: dict[str, Any] = _ADAPTERS[type(event)].dump_python(event, mode="json")
    del body["at"]
    return body


def decode(kind: str, at: datetime, body: dict[str, Any]) -> Event:
    """Decode a stored row; an `UnknownEvent` if only a newer version can read it.

    Raises:
        pydantic.ValidationError: The body does not fit the kind.
    """
    cls = KINDS.get(kind)
    if cls is None:
        return UnknownEvent(at=at, kind=kind, body=body)
    try:
        event: Event = _ADAPTERS[cls].validate_python(
            {**{k: v for k, v in body.items() if k in _NAMES[cls]}, "at": at}
        )
    except ValidationError as error:
        if all(flaw["type"] in _NEWER for flaw in error.errors()):
            return UnknownEvent(at=at, kind=kind, body=body)
        raise
    return event
