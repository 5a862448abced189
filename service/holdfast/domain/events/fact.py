"""What all facts share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar


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
class Fact:
    """What all events share."""

    source: ClassVar[Source]
    at: datetime
