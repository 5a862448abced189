"""The worker's wall clock, for timestamps that others read.

Measure durations with `time.monotonic`.
"""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """The current time, timezone-aware, in UTC."""
    return datetime.now(tz=UTC)


def to_iso(moment: datetime) -> str:
    """`moment` as RFC 3339 in UTC with microseconds, as reports carry it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
