"""The tables. `job_events` is the truth; `jobs` is a cache of its fold; the rest is mutable by nature.

Migrations in `migrations/versions` build the same tables; a test holds the two against each other.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    DateTime,
    MetaData,
    TypeDecorator,
)
from sqlalchemy.engine import Dialect


class UtcTime(TypeDecorator[datetime]):
    """An aware time in UTC, on databases with time zones and without."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """The time to be stored; a naive one is a bug of ours."""
        if value is None:
            return None
        assert value.tzinfo is not None, "a naive time has no place in the journal"
        return value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """The stored time, aware again where the database forgot its zone."""
        if value is None:
            return None
        time: datetime = value
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
