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
)

__all__ = ["billing", "identity", "jobs", "launches", "market", "metrics", "notifications"]
