"""SQLAlchemy tables, named as in the database. An import of any of them makes all of them known to `base.metadata`."""

from holdfast.store.tables import billing, identity, jobs, launches, metrics, notifications

__all__ = ["billing", "identity", "jobs", "launches", "metrics", "notifications"]
