"""Ranges of days in queries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Final

from fastapi import Depends, Query

from holdfast.api.dependencies import TheServices
from holdfast.errors import BadRequest

_DAYS_AGO: Final = re.compile(r"(\d{1,5})d")
_SUPPORTED_DATES: Final = (date(1000, 1, 1), date(9000, 1, 1))
"""First and last accepted date: computations add some days, and calendars end."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of days in UTC."""

    since: date | None
    """First day; None: no lower limit."""
    until: date | None
    """Last day; None: until now."""

    @property
    def begins_at(self) -> datetime | None:
        """Start of the range; None without one."""
        return datetime.combine(self.since, time.min, UTC) if self.since else None

    @property
    def ends_at(self) -> datetime | None:
        """First moment after the range; None without an end."""
        after = self.until + timedelta(days=1) if self.until else None
        return datetime.combine(after, time.min, UTC) if after else None


def day(name: str, text: str | None, now: datetime) -> date | None:
    """Parse a day such as 2026-03-01, or 30d for so many days until today; None if not given.

    Raises:
        BadRequest: it is neither.
    """
    if text is None:
        return None
    found = _day(text, now)
    if found is None or not _SUPPORTED_DATES[0] <= found <= _SUPPORTED_DATES[1]:
        raise BadRequest(
            f"{name}: {text!r} is not a day; write one in UTC, such as 2026-03-01, or a number of days, such as 30d"
        )
    return found


def _day(text: str, now: datetime) -> date | None:
    try:
        if ago := _DAYS_AGO.fullmatch(text):
            return now.date() - timedelta(days=max(0, int(ago[1]) - 1))
        return date.fromisoformat(text)
    except (ValueError, OverflowError):
        return None


def _time_range(
    services: TheServices,
    since: Annotated[
        str | None, Query(max_length=32, description="First day in UTC: 2026-03-01, or 30d.")
    ] = None,
    until: Annotated[
        str | None, Query(max_length=32, description="Last day in UTC, in the format of `since`.")
    ] = None,
) -> TimeRange:
    return time_range(since, until, services.clock.now())


def time_range(since: str | None, until: str | None, now: datetime) -> TimeRange:
    """Parse a range of days.

    Raises:
        BadRequest: one of them is no day, or they are in the wrong order.
    """
    window = TimeRange(day("since", since, now), day("until", until, now))
    if window.since and window.until and window.since > window.until:
        raise BadRequest(f"until: {window.until} is before since, {window.since}; swap the two")
    return window


TheTimeRange = Annotated[TimeRange, Depends(_time_range)]
"""The range of days in the query."""
