"""The days that somebody asks about, in the ways in which people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Final

from fastapi import Depends, Query

from holdfast.api.dependencies import The
from holdfast.errors import BadRequest

_AGO: Final = re.compile(r"(\d{1,5})d")
_KNOWN: Final = (date(1000, 1, 1), date(9000, 1, 1))
"""The first and the last that is taken: whoever reckons goes some days further, and calendars end."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Some days in UTC."""

    since: date | None
    """The first; None: from the beginning."""
    until: date | None
    """The last; None: until now."""

    @property
    def begins_at(self) -> datetime | None:
        """The first moment; None: there is none."""
        return datetime.combine(self.since, time.min, UTC) if self.since else None

    @property
    def ends_at(self) -> datetime | None:
        """The first moment after it; None: there is none."""
        after = self.until + timedelta(days=1) if self.until else None
        return datetime.combine(after, time.min, UTC) if after else None


def day(name: str, text: str | None, now: datetime) -> date | None:
    """A day, written as 2026-03-01 or, so many days up to today, as 30d; None where none was written.

    Raises:
        BadRequest: it is neither.
    """
    if text is None:
        return None
    found = _day(text, now)
    if found is None or not _KNOWN[0] <= found <= _KNOWN[1]:
        raise BadRequest(
            f"{name}: {text!r} is no day; write one in UTC, such as 2026-03-01, or a number of days, such as 30d"
        )
    return found


def _day(text: str, now: datetime) -> date | None:
    try:
        if ago := _AGO.fullmatch(text):
            return now.date() - timedelta(days=max(0, int(ago[1]) - 1))
        return date.fromisoformat(text)
    except (ValueError, OverflowError):
        return None


def _window(
    services: The,
    since: Annotated[
        str | None, Query(max_length=32, description="First day in UTC: 2026-03-01, or 30d.")
    ] = None,
    until: Annotated[
        str | None, Query(max_length=32, description="Last day in UTC, as `since`.")
    ] = None,
) -> TimeRange:
    now = services.clock.now()
    window = TimeRange(day("since", since, now), day("until", until, now))
    if window.since and window.until and window.since > window.until:
        raise BadRequest(f"until: {window.until} is before since, {window.since}; swap the two")
    return window


TheWindow = Annotated[TimeRange, Depends(_window)]
"""What the request says of days."""
