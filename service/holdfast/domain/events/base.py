"""Base classes of events, and the placeholder for events of newer versions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar


class Source(StrEnum):
    """Source of an event."""

    USER = "user"
    RECONCILER = "reconciler"
    LAUNCHER = "launcher"
    WORKER = "worker"
    JANITOR = "janitor"
    """Checkpoint retention. Its events do not concern nodes."""
    UNKNOWN = "unknown"
    """A newer version; the event's row contains the real source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventBase:
    """Fields of all events."""

    source: ClassVar[Source]
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownEvent(EventBase):
    """An event with a kind or enum value that this version does not know.

    It is listed unchanged and changes no state.
    """

    source: ClassVar[Source] = Source.UNKNOWN
    kind: str
    body: dict[str, Any]
