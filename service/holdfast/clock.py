"""The real clock, behind the port that everything else reads time from."""

from __future__ import annotations

from datetime import UTC, datetime


class SystemClock:
    """Time of this machine."""

    def now(self) -> datetime:
        """The time now, aware, in UTC."""
        return datetime.now(UTC)  # tidy: the one door to the wall clock
