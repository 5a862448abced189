"""Tables of uploaded code, for replicas without a shared home directory.

A backup omits them: like the code in a home directory, a client uploads it again.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, String, Table, Text

from holdfast.store.tables.base import UtcTime, metadata

code_pieces = Table(
    "code_pieces",
    metadata,
    Column("owner", String(40), primary_key=True, doc="Name of the owner's directory."),
    Column("digest", String(64), primary_key=True, doc="SHA-256 of the content."),
    Column("size_bytes", BigInteger, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("used_at", UtcTime, nullable=False, doc="Time of the last use."),
    info={"in_backup": False},
)

code_trees = Table(
    "code_trees",
    metadata,
    Column("owner", String(40), primary_key=True),
    Column("id", String(64), primary_key=True, doc="Digest of the entries."),
    Column("entries", Text, nullable=False, doc="JSON list of the directory's entries."),
    Column("used_at", UtcTime, nullable=False, doc="Time of the last use."),
    info={"in_backup": False},
)
Index("ix_code_trees_used_at", code_trees.c.used_at)
