"""Clocks: the system clock, and clocks that tests and demonstrations move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.ports import Clock

SIMULATION_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class SimulatedClock:
    """A clock that moves only by `advance`."""

    def __init__(self, start: datetime = SIMULATION_START) -> None:
        self._now = start

    def now(self) -> datetime:
        """The current time, aware, in UTC."""
        return self._now

    def advance(self, seconds: float) -> datetime:
        """Move the clock and return its new time."""
        self._now += timedelta(seconds=seconds)
        return self._now


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """The current time, aware, in UTC."""
        return datetime.now(UTC)  # tidy: the only access to the wall clock


class ScriptedClock:
    """A clock that moves only by `move_to`, until it follows real time."""

    def __init__(self, start: datetime, real: Clock | None = None) -> None:
        self._real = real or SystemClock()
        self._scripted_now: datetime | None = start

    def now(self) -> datetime:
        """The current time, aware, in UTC."""
        return self._scripted_now or self._real.now()

    def move_to(self, moment: datetime) -> None:
        """Move the clock to a moment; it never moves back."""
        assert self._scripted_now is not None, "a clock that follows real time cannot be moved"
        self._scripted_now = max(self._scripted_now, moment)

    def follow_real_time(self) -> None:
        """Follow real time from now on."""
        self._scripted_now = None
