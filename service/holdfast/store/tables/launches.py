"""The tables. `job_events` is the truth; `jobs` is a cache of its fold; the rest is mutable by nature.

Migrations in `migrations/versions` build the same tables; a test holds the two against each other.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    String,
    Table,
    Text,
)

from holdfast.store.tables.base import UtcTime, metadata

upkeep = Table(
    "upkeep",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column(
        "due_at",
        UtcTime,
        nullable=True,
        index=True,
        doc="When its checkpoint store is tidied next; a replica's lease ends here. NULL: it was for the last time.",
    ),
    Column("tidied_at", UtcTime, nullable=True, doc="When that last came to its end; NULL before."),
    Column(
        "trouble", Text, nullable=True, doc="Why the last try came to nothing; NULL if it did not."
    ),
    Column(
        "since", UtcTime, nullable=True, doc="When the trouble was first met; NULL without any."
    ),
)

launches = Table(
    "launches",
    metadata,
    Column("key", String(48), primary_key=True),
    Column("job_id", String(32), nullable=False, index=True),
    Column(
        "generation",
        Integer,
        nullable=False,
        doc="Which token of this launch is meant; a new one only once the old one can start nothing.",
    ),
    Column("state", String(16), nullable=False, doc="Of the token: issued, consumed or revoked."),
    Column("state_at", UtcTime, nullable=False),
    Column("posted_at", UtcTime, nullable=True, doc="Last time the engine was asked to launch."),
    Column(
        "request_id",
        String(64),
        nullable=True,
        doc="What the engine called that request; NULL while no answer came.",
    ),
    Column(
        "engine_id", BigInteger, nullable=True, doc="The engine's own number; NULL until known."
    ),
    Column("cancelled_at", UtcTime, nullable=True),
    Column(
        "missing_since",
        UtcTime,
        nullable=True,
        doc="First listing that lacked a launch which was there before; NULL while it is listed.",
    ),
    Column(
        "lost",
        Text,
        nullable=True,
        doc="What may still run without a record at the engine, in words; NULL where nothing may.",
    ),
)

launch_events = Table(
    "launch_events",
    metadata,
    Column("key", String(48), primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False, doc="Order of copying, from 1."),
    Column("at", UtcTime, nullable=False),
    Column("status", String(32), nullable=False),
    Column("code", Text, nullable=True),
    Column("reason", Text, nullable=False),
)

musters = Table(
    "musters",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column(
        "n",
        Integer,
        primary_key=True,
        autoincrement=False,
        doc="Order of arrival, from 1; the highest may speak for the job, the others are fenced. Below 1: has posted, never asked.",
    ),
    Column("incarnation", String(64), nullable=False),
    Column("asked_at", UtcTime, nullable=False),
    Column("attempt", Integer, nullable=True, doc="NULL until a look has told which one it is."),
    Column(
        "before",
        BigInteger,
        nullable=True,
        doc="Reports of that attempt that others sent before its first; NULL as attempt, and where nobody wrote it down.",
    ),
)
