"""Notification channels of projects and jobs.

A URL gives access to a chat room, so it is encrypted like the secrets of jobs, and never displayed again.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Engine, Select, delete, func, insert, select, update

from holdfast.domain.access.audit import Actor
from holdfast.domain.budgets import BudgetScope
from holdfast.domain.events import Outcome
from holdfast.domain.notifications.channels import (
    ROTATION_GRACE,
    ChannelPreferences,
    Destination,
    TransportKind,
)
from holdfast.domain.notifications.events import NotificationKind
from holdfast.errors import Conflict, NotFound, NotPossibleNow
from holdfast.ports import Clock
from holdfast.store import audit_log
from holdfast.store.database import reading, writing
from holdfast.store.secrets import SecretBox
from holdfast.store.tables.jobs import job_events, jobs, removed_jobs
from holdfast.store.tables.notifications import channels, deliveries, news

_SECRET_BYTES: Final = 32
MAX_CHANNELS: Final = 50
"""Per project. A lower value limits large teams; a higher value queues each event more often."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
    """A channel, without its secrets."""

    id: str
    project: str
    job_id: str | None
    """None: for all jobs of the project."""
    name: str
    destination: Destination
    preferences: ChannelPreferences
    made_by: str
    created_at: datetime
    rotated_at: datetime | None
    """When its secret was changed; None: not yet."""


@dataclass(frozen=True, slots=True)
class ChannelTarget:
    """The URL and secrets of a channel."""

    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Signing secrets of a webhook, the newest first; empty for other channels."""


class Channels:
    """The channels of all projects and jobs."""

    def __init__(self, engine: Engine, clock: Clock, secret: bytes) -> None:
        self._engine = engine
        self._clock = clock
        self._secret_box = SecretBox(secret, "channels")

    def add(
        self,
        project: str,
        name: str,
        url: str,
        *,
        destination: Destination,
        preferences: ChannelPreferences,
        actor: Actor,
    ) -> tuple[Channel, str | None]:
        """Add a channel; return it with the signing secret if it is a webhook.

        Raises:
            Conflict: the project has a channel of that name, or the maximum of channels.
        """
        signing = _new_secret() if destination.transport is TransportKind.WEBHOOK else None
        with writing(self._engine) as connection:
            if _named(connection, project, name) is not None:
                raise Conflict(
                    f"project {project} already has a channel {name}; choose another name"
                )
            if _count(connection, project) >= MAX_CHANNELS:
                raise Conflict(f"project {project} has {MAX_CHANNELS} channels; remove one first")
            row = self._row(
                project, name, url, destination=destination, preferences=preferences, by=actor.name
            )
            held = {"url": url, "secrets": [signing] if signing else []}
            row["sealed"] = self._secret_box.encrypt(row["id"], held)
            row["after_cursor"] = newest_cursor(connection)
            connection.execute(insert(channels).values(**row))
            after = {"place": destination.shown, "kinds": row["kinds"]}
            action = actor.audit_action("channel.add", f"{project}/{name}", after=after)
            audit_log.append(connection, action, row["created_at"])
        return _channel(row), signing

    def rows_for_job(
        self, job_id: str, project: str, by: str, destinations: Sequence[tuple[str, Destination]]
    ) -> list[dict[str, Any]]:
        """Rows for `Journal.submit`: the channels that a job file names, by their URLs."""
        rows = []
        for number, (url, destination) in enumerate(destinations, 1):
            named = f"notify-{number}"
            row = self._row(
                project,
                named,
                url,
                destination=destination,
                preferences=ChannelPreferences(),
                by=by,
                job_id=job_id,
            )
            row["sealed"] = self._secret_box.encrypt(row["id"], {"url": url, "secrets": []})
            rows.append({**row, "after_cursor": 0})
        return rows

    def list_for_project(self, project: str) -> list[Channel]:
        """The channels of a project, by name; those of single jobs are left out."""
        mine = channels.c.project == project, channels.c.job_id.is_(None)
        with reading(self._engine) as connection:
            rows = connection.execute(select(channels).where(*mine).order_by(channels.c.name))
            return [_channel(row) for row in rows.mappings()]

    def list_for_job(self, job_id: str) -> list[Channel]:
        """The channels of a job file, in its order.

        They are deleted some time after the job has ended.
        """
        query = select(channels).where(channels.c.job_id == job_id)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(func.length(channels.c.name), channels.c.name))
            return [_channel(row) for row in rows.mappings()]

    def read(self, project: str, name: str) -> Channel:
        """The channel of a name.

        Raises:
            NotFound: the project has none.
        """
        with reading(self._engine) as connection:
            return _channel(_require_channel(connection, project, name))

    def remove(self, project: str, name: str, actor: Actor) -> None:
        """Remove a channel and its messages.

        Raises:
            NotFound: the project has none of that name.
        """
        with writing(self._engine) as connection:
            row = _require_channel(connection, project, name)
            for table, column in (
                (news, news.c.channel_id),
                (deliveries, deliveries.c.channel_id),
                (channels, channels.c.id),
            ):
                connection.execute(delete(table).where(column == row["id"]))
            before = {"place": row["shown"]}
            action = actor.audit_action("channel.remove", f"{project}/{name}", before=before)
            audit_log.append(connection, action, self._clock.now())

    def rotate(self, project: str, name: str, actor: Actor) -> tuple[Channel, str]:
        """Rotate the secret of a webhook; for a day, messages are also signed with the previous one.

        Raises:
            NotFound: the project has none of that name.
            NotPossibleNow: it is not a webhook, or cannot be decrypted here.
        """
        now, signing = self._clock.now(), _new_secret()
        with writing(self._engine) as connection:
            row = dict(_require_channel(connection, project, name))
            held = self._secret_box.decrypt(row["id"], row["sealed"])
            if row["way"] != TransportKind.WEBHOOK or held is None:
                raise NotPossibleNow(
                    f"channel {name} has no secret to change; only webhooks are signed"
                )
            held["secrets"] = [signing, *held["secrets"][:1]]
            change = {"sealed": self._secret_box.encrypt(row["id"], held), "rotated_at": now}
            connection.execute(update(channels).where(channels.c.id == row["id"]).values(**change))
            audit_log.append(
                connection, actor.audit_action("channel.rotate", f"{project}/{name}"), now
            )
        return _channel({**row, **change}), signing

    def open(self, channel_id: str) -> ChannelTarget | None:
        """The URL and secrets of a channel.

        None if it was removed, or encrypted with a different secret.
        """
        with reading(self._engine) as connection:
            query = select(channels).where(channels.c.id == channel_id)
            row = connection.execute(query).mappings().first()
        held = self._secret_box.decrypt(channel_id, row["sealed"]) if row else None
        if row is None or held is None:
            return None
        rotated_at = row["rotated_at"]
        both = rotated_at is None or self._clock.now() - rotated_at < ROTATION_GRACE
        return ChannelTarget(held["url"], tuple(held["secrets"] if both else held["secrets"][:1]))

    def _row(
        self,
        project: str,
        name: str,
        url: str,
        *,
        destination: Destination,
        preferences: ChannelPreferences,
        by: str,
        job_id: str | None = None,
    ) -> dict[str, Any]:
        return {
            "id": f"c{secrets.token_hex(7)}",
            "project": project,
            "job_id": job_id,
            "name": name,
            "way": destination.transport.value,
            "shown": destination.shown,
            "mark": self._secret_box.fingerprint(url),
            "kinds": sorted(kind.value for kind in preferences.kinds),
            "digest_s": preferences.digest_s,
            "per_hour": preferences.per_hour,
            "made_by": by,
            "created_at": self._clock.now(),
            "rotated_at": None,
        }


def insert_channels(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows of `rows_for_job`, in the transaction that records the job."""
    if rows:
        connection.execute(insert(channels), rows)


def delete_expired(connection: Connection, before: datetime) -> None:
    """Remove channels of jobs that ended before, or were removed, once nothing waits for them."""
    # The status alone is not sufficient: the notifications of a job that has just ended may still
    # wait.
    quiet = jobs.c.fold["updated_at"].as_string() < before.isoformat()
    over = select(jobs.c.id).where(jobs.c.status.in_(list(Outcome)), quiet)
    waiting = select(news.c.channel_id)
    under_way = select(deliveries.c.channel_id).where(deliveries.c.due_at.is_not(None))
    old = (
        channels.c.job_id.in_(over) | channels.c.job_id.in_(select(removed_jobs.c.id)),
        channels.c.id.not_in(waiting),
        channels.c.id.not_in(under_way),
    )
    connection.execute(delete(channels).where(*old))


def subscriber_ids(
    connection: Connection, project: str, job_id: str, kind: NotificationKind, cursor: int
) -> list[str]:
    """Channels of a project and its job that existed before `cursor` and subscribe to a kind."""
    return _unique_subscribers(connection, subscribers_query(project, job_id, cursor), kind)


def subscribers_query(project: Any, job_id: Any, cursor: Any) -> Select[Any]:
    """Query for channels of a project and its job that existed before `cursor`.

    With columns as arguments, it selects those of each row.
    """
    is_of_job = channels.c.job_id.is_(None) | (channels.c.job_id == job_id)
    mine = channels.c.project == project, is_of_job, channels.c.after_cursor < cursor
    return select(channels).where(*mine)


def budget_subscriber_ids(connection: Connection, scope: BudgetScope, name: str) -> list[str]:
    """Channels notified of a budget: those of its project, and of all jobs paid from it."""
    payer = jobs.c.project if scope is BudgetScope.PROJECT else jobs.c.owner
    live = select(jobs.c.id).where(payer == name, jobs.c.status.not_in(list(Outcome)))
    named = channels.c.job_id.in_(live)
    made = (channels.c.project == name) & channels.c.job_id.is_(None)
    is_subscribed = named | made if scope is BudgetScope.PROJECT else named
    return _unique_subscribers(
        connection, select(channels).where(is_subscribed), NotificationKind.BUDGET
    )


def _unique_subscribers(
    connection: Connection, query: Select[Any], kind: NotificationKind
) -> list[str]:
    """Subscribed channels; each URL of a job file once.

    It is omitted if a channel of the project has the same URL.
    """
    rows = connection.execute(query.order_by(channels.c.created_at, channels.c.id)).mappings()
    wanting = [row for row in rows if preferences_from_row(row).accepts(kind)]
    made = [row for row in wanting if row["job_id"] is None]
    channel_marks = {row["mark"] for row in made}
    named = {row["mark"]: row["id"] for row in wanting if row["mark"] not in channel_marks}
    return [*(row["id"] for row in made), *named.values()]


def preferences_from_row(row: Any) -> ChannelPreferences:
    """The preferences of a channel row."""
    return ChannelPreferences(
        kinds=frozenset(NotificationKind(word) for word in row["kinds"]),
        digest_s=row["digest_s"],
        per_hour=row["per_hour"],
    )


def _new_secret() -> str:
    return f"whsec_{base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()}"


def newest_cursor(connection: Connection) -> int:
    """Cursor of the newest event; 0 without events."""
    found: int | None = connection.execute(select(func.max(job_events.c.cursor))).scalar()
    return found or 0


def _count(connection: Connection, project: str) -> int:
    mine = channels.c.project == project, channels.c.job_id.is_(None)
    return connection.execute(select(func.count()).select_from(channels).where(*mine)).scalar_one()


def _named(connection: Connection, project: str, name: str) -> Any | None:
    mine = channels.c.project == project, channels.c.name == name, channels.c.job_id.is_(None)
    return connection.execute(select(channels).where(*mine)).mappings().first()


def _require_channel(connection: Connection, project: str, name: str) -> Any:
    row = _named(connection, project, name)
    if row is None:
        raise NotFound(f"project {project} has no channel {name}")
    return row


def _channel(row: Any) -> Channel:
    return Channel(
        id=row["id"],
        project=row["project"],
        job_id=row["job_id"],
        name=row["name"],
        destination=Destination(transport=TransportKind(row["way"]), shown=row["shown"]),
        preferences=preferences_from_row(row),
        made_by=row["made_by"],
        created_at=row["created_at"],
        rotated_at=row["rotated_at"],
    )
