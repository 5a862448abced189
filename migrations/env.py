"""Runs migrations on the connection that `holdfast.store.database` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context
from holdfast.store.tables.base import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
