"""Time that moves when it is told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

DAWN: Final = datetime(2026, 1, 1, tzinfo=UTC)


class SimulatedClock:
    """A clock that stands still between two calls of `advance`."""

    def __init__(self, start: datetime = DAWN) -> None:
        self._now = start

    def now(self) -> datetime:
        """The time now, aware, in UTC."""
        return self._now

    def advance(self, seconds: float) -> datetime:
        """The time now, `seconds` later than before."""
        self._now += timedelta(seconds=seconds)
        return self._now
