"""The clock of the fake server's events, and capacity losses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.ports import Clock


@dataclass
class EventClock:
    """A clock that shows the due time of the current event; between events, the current time."""

    clock: Clock
    at: datetime | None = None

    def now(self) -> datetime:
        return self.at or self.clock.now()


@dataclass(frozen=True)
class Loss:
    """A capacity loss."""

    at: datetime
    cause: str
