"""Tables of launches, registered workers and nodes, commands, uploaded code, and retention."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
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
        doc="Time of the next retention run; the end of a replica's lease. NULL: no further run.",
    ),
    Column(
        "tidied_at",
        UtcTime,
        nullable=True,
        doc="End of the last successful run; NULL before the first.",
    ),
    Column("trouble", Text, nullable=True, doc="Why the last run failed; NULL if it succeeded."),
    Column(
        "since", UtcTime, nullable=True, doc="Time of the first of these failures; NULL without."
    ),
    *(
        Column(name, BigInteger, nullable=False, server_default="0", doc="Requests of the service.")
        for name in ("store_gets", "store_lists", "store_deletes")
    ),
)

store_request_days = Table(
    "store_request_days",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("day", String(10), primary_key=True, doc="In UTC, as 2026-03-01."),
    *(
        Column(name, BigInteger, nullable=False, doc="Requests of the service.")
        for name in ("store_gets", "store_lists", "store_deletes")
    ),
)
"""The counted requests in `upkeep` by day. Those of earlier versions are of no known day."""

store_places = Table(
    "store_places",
    metadata,
    Column("bucket", String(500), primary_key=True, doc="URL without a prefix, as s3://bucket."),
    Column("place", String(100), nullable=False, doc="As the store said, such as aws/us-east-1."),
)
"""Regions of stores: a cache, which any visit of a store fills again."""

launches = Table(
    "launches",
    metadata,
    Column("key", String(48), primary_key=True),
    Column("job_id", String(32), nullable=False, index=True),
    Column(
        "generation",
        Integer,
        nullable=False,
        doc="Generation of the launch's token; a new one only once the old one can start nothing.",
    ),
    Column(
        "state", String(16), nullable=False, doc="State of the token: issued, consumed or revoked."
    ),
    Column("state_at", UtcTime, nullable=False),
    Column("posted_at", UtcTime, nullable=True, doc="Time of the last launch request."),
    Column(
        "request_id",
        String(64),
        nullable=True,
        doc="The engine's id of that request; NULL without a response.",
    ),
    Column(
        "engine_id", BigInteger, nullable=True, doc="The engine's id of the job; NULL until known."
    ),
    Column("cancelled_at", UtcTime, nullable=True),
    Column(
        "missing_since",
        UtcTime,
        nullable=True,
        doc="First listing without a launch that was listed before; NULL while it is listed.",
    ),
    Column(
        "lost",
        Text,
        nullable=True,
        doc="Description of what may still run without a record at the engine; NULL: nothing.",
    ),
)

launch_events = Table(
    "launch_events",
    metadata,
    Column("key", String(48), primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False, doc="Order of recording, from 1."),
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
        doc="Order of registration, from 1; the highest one reports for the job, the others are fenced. Below 1: it has relayed reports and never registered.",
    ),
    Column("incarnation", String(64), nullable=False),
    Column("asked_at", UtcTime, nullable=False),
    Column("attempt", Integer, nullable=True, doc="NULL until an observation has determined it."),
    Column(
        "before",
        BigInteger,
        nullable=True,
        doc="Number of reports of that attempt from earlier workers; NULL while the attempt is, or if not recorded.",
    ),
)

rendezvous = Table(
    "rendezvous",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False, doc="Order of arrival, from 1."),
    Column("launch", Integer, nullable=False, doc="The launch of the job at that time."),
    Column("node", Integer, nullable=False, doc="Number of the node; 0 is a leader."),
    Column("node_group", String(64), nullable=False, doc="Name of its group."),
    Column("incarnation", String(64), nullable=False, doc="The node itself, as it calls itself."),
    Column("joined", Integer, nullable=False, doc="Number of leaders that it had joined by then."),
    Column(
        "leader",
        String(64),
        nullable=True,
        doc="The leader to which it was sent; NULL for a leader, and if there was none.",
    ),
    Column(
        "start",
        Integer,
        nullable=False,
        doc="How often the node was sent to that leader before; 0 without one.",
    ),
    Column("addresses", JSON, nullable=False, doc="A leader's addresses, the likeliest first."),
    Column("port", Integer, nullable=False, doc="A leader's port; 0 for another node."),
    Column("asked_at", UtcTime, nullable=False),
)

# A backup omits uploaded code: like that in a home directory, a client uploads it again.
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

node_commands = Table(
    "node_commands",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("job_id", String(32), nullable=False, index=True),
    Column("attempt", Integer, nullable=False, doc="The newest attempt at the request."),
    Column("node", Integer, nullable=False, doc="Number of the node that runs it."),
    Column("command", JSON, nullable=False, doc="The program and its arguments."),
    Column("timeout_s", Float, nullable=False),
    Column("requested_by", String(64), nullable=False),
    Column("requested_at", UtcTime, nullable=False),
    Column(
        "runner",
        String(64),
        nullable=True,
        doc="The wrapper that runs it; NULL before it has begun.",
    ),
    Column("started_at", UtcTime, nullable=True),
    Column("ended_at", UtcTime, nullable=True, index=True, doc="NULL until its end is reported."),
    Column("exit_code", Integer, nullable=True),
    Column("detail", Text, nullable=False, doc="What is not normal about its end."),
    Column("stdout", LargeBinary, nullable=False, doc="The first part of its output."),
    Column("stderr", LargeBinary, nullable=False),
    Column(
        "terminal",
        String(64),
        nullable=True,
        doc="Type of its terminal, as in TERM; NULL for a command without one.",
    ),
)

node_terminals = Table(
    "node_terminals",
    metadata,
    Column("command_id", String(32), primary_key=True),
    Column("job_id", String(32), nullable=False, index=True),
    Column("columns", Integer, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("input", LargeBinary, nullable=False, doc="What its node has not confirmed."),
    Column("input_end", BigInteger, nullable=False, doc="Bytes of input so far."),
    Column("output", LargeBinary, nullable=False, doc="What its client has not confirmed."),
    Column("output_end", BigInteger, nullable=False, doc="Bytes of output so far."),
    Column("seen_at", UtcTime, nullable=False, index=True, doc="Last request of its client."),
    Column("closed", Boolean, nullable=False, doc="Whether its user has closed it."),
)
