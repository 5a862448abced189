"""Time that moves when it is told to.

The real clock, behind the port that everything else reads time from.

Time that is told where to be while a history is made, and goes on by itself from then on.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.ports import Clock

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


class SystemClock:
    """Time of this machine."""

    def now(self) -> datetime:
        """The time now, aware, in UTC."""
        return datetime.now(UTC)  # tidy: the one door to the wall clock


class ScriptedClock:
    """A clock that stands still between two calls of `move_to`, until it is let go."""

    def __init__(self, start: datetime, real: Clock | None = None) -> None:
        self._real = real or SystemClock()
        self._told: datetime | None = start

    def now(self) -> datetime:
        """The time now, aware, in UTC."""
        return self._told or self._real.now()

    def move_to(self, moment: datetime) -> None:
        """Be there; never earlier than before."""
        assert self._told is not None, "a clock that was let go cannot be moved"
        self._told = max(self._told, moment)

    def let_go(self) -> None:
        """Tell the real time from now on."""
        self._told = None
