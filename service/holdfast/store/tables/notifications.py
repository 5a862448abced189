"""Tables of notifications: channels, waiting notifications and deliveries."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, String, Table, Text

from holdfast.store.tables.base import UtcTime, metadata

channels = Table(
    "channels",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("project", String(64), nullable=False, index=True),
    Column(
        "job_id", String(32), nullable=True, index=True, doc="NULL: for all jobs of the project."
    ),
    Column("name", String(100), nullable=False),
    Column("way", String(16), nullable=False, doc="webhook, mail or chat."),
    Column(
        "shown", Text, nullable=False, doc="Scheme and host, the only displayed part of the URL."
    ),
    Column("sealed", Text, nullable=False, doc="Encrypted URL and secrets."),
    Column("mark", String(64), nullable=False, doc="Identical for identical URLs."),
    Column("kinds", JSON, nullable=False, doc="Names of event kinds; empty: all."),
    Column("digest_s", Integer, nullable=False),
    Column("per_hour", Integer, nullable=False),
    Column("made_by", String(64), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("rotated_at", UtcTime, nullable=True, doc="NULL: its secret was not changed."),
    Column("after_cursor", BigInteger, nullable=False, doc="Only later events are notified."),
)

news = Table(
    "news",
    metadata,
    Column("channel_id", String(16), primary_key=True),
    Column("id", String(200), primary_key=True),
    Column("since", UtcTime, nullable=False, doc="Time since it waits."),
    Column("body", JSON, nullable=False),
)
"""Notifications that wait for a message."""
Index("ix_news_channel_id_since", news.c.channel_id, news.c.since)

news_marks = Table(
    "news_marks",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("cursor", BigInteger, nullable=False, doc="Cursor of the last event examined."),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", String(40), primary_key=True, doc="Id of the message, also for its receiver."),
    Column("channel_id", String(16), nullable=False),
    Column("made_at", UtcTime, nullable=False),
    Column("progress", String(16), nullable=False, doc="waiting, sent or dead."),
    Column(
        "due_at",
        UtcTime,
        nullable=True,
        index=True,
        doc="Time of the next delivery attempt; the end of a replica's lease. NULL: no further attempt.",
    ),
    Column("tries", Integer, nullable=False, doc="Delivery attempts so far."),
    Column("most_tries", Integer, nullable=False),
    Column("news_count", Integer, nullable=False),
    Column("kinds", JSON, nullable=False, doc="Kinds of the events in it."),
    Column(
        "trouble", Text, nullable=True, doc="Why the last attempt failed; NULL if it succeeded."
    ),
    Column("done_at", UtcTime, nullable=True, doc="When it was delivered or given up."),
    Column("payload", Text, nullable=False, doc="Identical at every attempt."),
)
Index("ix_deliveries_channel_id_made_at", deliveries.c.channel_id, deliveries.c.made_at)
