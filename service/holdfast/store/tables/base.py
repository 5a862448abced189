"""Base of the SQLAlchemy tables: their metadata and the type of times.

`job_events` is the only truth; `jobs` caches the folded state of each job; the other tables are
mutable. Migrations in `migrations/versions` create the same tables, which a test compares.
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
    """An aware time in UTC, on databases with and without time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Convert a time for the database; it must be aware."""
        if value is None:
            return None
        assert value.tzinfo is not None, "times must be aware"
        return value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Convert a stored time to UTC, also if the database dropped its zone."""
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
