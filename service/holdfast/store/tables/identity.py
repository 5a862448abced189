"""Tables of users, projects, memberships, tokens, sessions and the audit log."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Index, String, Table, Text

from holdfast.store.tables.base import UtcTime, metadata

users = Table(
    "users",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("is_admin", Boolean, nullable=False, doc="Administrator of the service."),
    Column("created_at", UtcTime, nullable=False),
    Column("disabled_at", UtcTime, nullable=True, doc="NULL: enabled."),
    Column(
        "confirmed_until",
        UtcTime,
        nullable=True,
        doc="When tokens stop unless the identity provider confirms the user; NULL: never.",
    ),
)

identities = Table(
    "identities",
    metadata,
    Column("issuer", String(255), primary_key=True),
    Column("subject", String(255), primary_key=True, doc="The account at the identity provider."),
    Column("user", String(64), nullable=False, unique=True),
    Column("created_at", UtcTime, nullable=False),
    Column("granted", JSON, nullable=False, doc="Access that groups gave last."),
    Column("due_at", UtcTime, nullable=False, index=True, doc="When the next check is due."),
)

sign_ins = Table(
    "sign_ins",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("user", String(64), nullable=False, index=True),
    Column("created_at", UtcTime, nullable=False),
    Column("sealed", Text, nullable=False, doc="The refresh token, encrypted."),
)
"""Sign-ins at the identity provider with which users are checked."""

projects = Table(
    "projects",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("created_at", UtcTime, nullable=False),
    Column("archived_at", UtcTime, nullable=True, doc="NULL: it accepts new jobs."),
)

members = Table(
    "members",
    metadata,
    Column("project", String(64), primary_key=True),
    Column("user", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
)
Index("ix_members_user", members.c.user)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column(
        "sha256",
        String(64),
        nullable=True,
        doc="Digest of the secret as stored by the first version; NULL once `mac` replaces it.",
    ),
    Column(
        "mac",
        String(64),
        nullable=True,
        doc="HMAC of that digest under the service's secret; NULL until the service has started.",
    ),
    Column("name", String(100), nullable=False, doc="Purpose."),
    Column("user", String(64), nullable=True, index=True, doc="NULL: the owner of the service."),
    Column(
        "project", String(64), nullable=True, doc="The only project it is valid for; NULL: all."
    ),
    Column("scopes", String(64), nullable=False, doc="Separated by spaces."),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=True, doc="NULL: never."),
    Column("last_used_at", UtcTime, nullable=True, doc="To the minute; NULL: no recorded use."),
    Column("revoked_at", UtcTime, nullable=True),
    Column(
        "replaced_by", String(16), nullable=True, doc="The token that replaced it at a rotation."
    ),
    Column(
        "parent",
        String(16),
        nullable=True,
        index=True,
        doc="The token that created it; NULL: none, or not recorded.",
    ),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id_sha256", String(64), primary_key=True, doc="Digest of the cookie's value."),
    Column(
        "token_id",
        String(16),
        nullable=False,
        index=True,
        doc="The token with which the session ends.",
    ),
    Column("csrf", String(64), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("seen_at", UtcTime, nullable=False, doc="To the minute."),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    Column("actor", String(64), nullable=False),
    Column("token_id", String(16), nullable=True),
    Column("address", String(64), nullable=True),
    Column("request_id", String(32), nullable=True),
    Column("action", String(64), nullable=False),
    Column("target", Text, nullable=False),
    Column("before", JSON(none_as_null=True), nullable=True),
    Column("after", JSON(none_as_null=True), nullable=True),
    Column("previous_hash", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
)

audit_anchors = Table(
    "audit_anchors",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", String(64), nullable=False),
    Column("at", UtcTime, nullable=False, doc="When rows up to `seq` were removed."),
)
"""Last rows that the retention of the audit log removed. The log continues after the newest of
them."""
