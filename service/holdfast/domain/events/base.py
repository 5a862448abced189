"""What all facts share.

An event that a newer version recorded, as an older version keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar


class Source(StrEnum):
    """Who told a fact."""

    USER = "user"
    RECONCILER = "reconciler"
    LAUNCHER = "launcher"
    WORKER = "worker"
    JANITOR = "janitor"
    """Who tidies up checkpoint stores. What it tells says nothing about nodes."""
    UNKNOWN = "unknown"
    """A newer version; the row of the event holds its real source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventBase:
    """What all events share."""

    source: ClassVar[Source]
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownEvent(EventBase):
    """An event of a kind, or with an enum value, that this version does not know. It is listed as it is and changes no state."""

    source: ClassVar[Source] = Source.UNKNOWN
    kind: str
    body: dict[str, Any]
