"""When things happen at the stand-in, and when nodes were lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.ports import Clock


@dataclass
class Hands:
    """A clock that shows when a thing is due while it happens, and the time of the others otherwise."""

    clock: Clock
    at: datetime | None = None

    def now(self) -> datetime:
        return self.at or self.clock.now()


@dataclass(frozen=True)
class Loss:
    """Nodes that were lost."""

    at: datetime
    why: str
