"""SQLAlchemy tables, named as in the database.

Importing any of them registers all of them in `base.metadata`.
"""

from holdfast.store.tables import (
    billing,
    identity,
    jobs,
    launches,
    market,
    metrics,
    notifications,
    sweeps,
)

__all__ = [
    "billing",
    "identity",
    "jobs",
    "launches",
    "market",
    "metrics",
    "notifications",
    "sweeps",
]
