"""The tables of notifications: where news goes, what waits to be told, and what was sent."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, String, Table, Text

from holdfast.store.tables.base import UtcTime, metadata

channels = Table(
    "channels",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("project", String(64), nullable=False, index=True),
    Column("job_id", String(32), nullable=True, index=True, doc="NULL: for all of the project."),
    Column("name", String(100), nullable=False),
    Column("way", String(16), nullable=False, doc="webhook, mail or chat."),
    Column("shown", Text, nullable=False, doc="Scheme and host: all that is ever shown of it."),
    Column("sealed", Text, nullable=False, doc="Its URL and secrets."),
    Column("mark", String(64), nullable=False, doc="The same for the same URL, to see it by."),
    Column("kinds", JSON, nullable=False, doc="Names; empty: all."),
    Column("digest_s", Integer, nullable=False),
    Column("per_hour", Integer, nullable=False),
    Column("made_by", String(64), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("rotated_at", UtcTime, nullable=True, doc="NULL: it has its first secret."),
    Column("after_cursor", BigInteger, nullable=False, doc="Only what came after it is told."),
)

news = Table(
    "news",
    metadata,
    Column("channel_id", String(16), primary_key=True),
    Column("id", String(200), primary_key=True),
    Column("since", UtcTime, nullable=False, doc="Since when it waits here."),
    Column("body", JSON, nullable=False),
)
"""What waits to be put into a message."""
Index("ix_news_channel_id_since", news.c.channel_id, news.c.since)

news_marks = Table(
    "news_marks",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("cursor", BigInteger, nullable=False, doc="Of the last event that was looked at."),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", String(40), primary_key=True, doc="Of the message, for whoever gets it."),
    Column("channel_id", String(16), nullable=False),
    Column("made_at", UtcTime, nullable=False),
    Column("progress", String(16), nullable=False, doc="waiting, sent or dead."),
    Column(
        "due_at",
        UtcTime,
        nullable=True,
        index=True,
        doc="When it is sent next; a replica's lease ends here. NULL: it is not sent any more.",
    ),
    Column("tries", Integer, nullable=False, doc="Begun so far."),
    Column("most_tries", Integer, nullable=False),
    Column("news_count", Integer, nullable=False),
    Column("kinds", JSON, nullable=False, doc="Of what it tells."),
    Column("trouble", Text, nullable=True, doc="Why the last try failed; NULL if it did not."),
    Column("done_at", UtcTime, nullable=True, doc="When it was sent, or given up."),
    Column("payload", Text, nullable=False, doc="The same at every try."),
)
Index("ix_deliveries_channel_id_made_at", deliveries.c.channel_id, deliveries.c.made_at)
