"""Months of the calendar, in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Month:
    """One month of the calendar, in UTC."""

    start: datetime
    end: datetime

    @classmethod
    def of(cls, now: datetime) -> Month:
        """The month in which a moment lies."""
        at = now.astimezone(UTC)
        first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = (at.year, at.month + 1) if at.month < 12 else (at.year + 1, 1)
        return cls(first, first.replace(year=year, month=month))

    def __str__(self) -> str:
        """As in `2026-03`."""
        return f"{self.start:%Y-%m}"
