"""The outbox: notifications that wait for their message, and messages that wait to be sent.

Events are followed by their cursor, in commit order. One transaction queues the notifications of
new events and moves the cursor, so that each is queued once, even after a crash. A message is
created once, with its own id and text, and may be sent more than once.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, Select, delete, func, insert, select, update

from holdfast.domain.events import decode
from holdfast.domain.notifications.channels import (
    HOUR,
    RETRY_S,
    DeliveryStatus,
    Message,
    batch_sizes,
    next_retry_at,
    payload,
)
from holdfast.domain.notifications.events import (
    NOTIFYING_EVENTS,
    Notification,
    NotificationKind,
    notification_for,
)
from holdfast.errors import NotFound
from holdfast.ports import Clock
from holdfast.store import event_log
from holdfast.store.database import reading, writing
from holdfast.store.notifications.channels import (
    Channel,
    delete_expired,
    newest_cursor,
    preferences_from_row,
    subscriber_ids,
    subscribers_query,
)
from holdfast.store.tables.jobs import job_events, jobs
from holdfast.store.tables.notifications import channels, deliveries, news, news_marks

_BATCH_EVENTS: Final = 200
"""Events examined in one transaction. A lower value adds transactions after a pause; a higher value
lets other writers wait longer."""
_MAX_LAG: Final = 1000
"""Events without notifications after which the cursor is moved nevertheless. A lower value adds
transactions; a higher value reads that many events again each time."""
_RETENTION: Final = timedelta(days=30)
"""How long sent messages are listed. A lower value hides last month; a higher value makes the table
grow."""
_CURSOR_NAME: Final = "events"


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A message and its delivery status."""

    id: str
    channel_id: str
    made_at: datetime
    progress: DeliveryStatus
    due_at: datetime | None
    """Time of the next delivery attempt; None: no further attempt."""
    tries: int
    notification_count: int
    kinds: tuple[str, ...]
    error: str | None
    """Why the last attempt failed; None if it succeeded."""
    done_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeliveryLease:
    """A message that is leased to this replica."""

    message: Message
    channel_id: str
    tries: int
    """Delivery attempts, including this one."""
    most_tries: int
    until: datetime


class Outbox:
    """Waiting notifications and messages."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def enqueue_new_events(self) -> int:
        """Queue the notifications of new events; return the number of events examined."""
        with reading(self._engine) as connection:
            behind = newest_cursor(connection) - _read_cursor(connection)
            if behind < _MAX_LAG and not _unread_events(connection):
                return 0  # The usual case needs no write transaction.
        with writing(self._engine) as connection:
            rows = _unread_events(connection)
            for row in rows:
                job = event_log.read(connection, row["job_id"])
                event = decode(row["kind"], row["at"], row["body"])
                item = notification_for(job.id, job.name, row["seq"], event)
                if item is not None:
                    channel_ids = subscriber_ids(
                        connection, job.project, job.id, item.kind, row["cursor"]
                    )
                    enqueue(connection, channel_ids, item, self._clock.now())
            # Only this transaction writes now: no event up to the newest was skipped.
            place = rows[-1]["cursor"] if len(rows) == _BATCH_EVENTS else newest_cursor(connection)
            mine = update(news_marks).where(news_marks.c.name == _CURSOR_NAME)
            connection.execute(mine.values(cursor=place))
        return len(rows)

    def create_messages(self) -> int:
        """Create messages from due notifications; return their number."""
        now = self._clock.now()
        with reading(self._engine) as connection:
            if not any(
                _due_sizes(connection, row, now) for row in _channels_with_notifications(connection)
            ):
                return 0
        made = 0
        with writing(self._engine) as connection:
            for row in _channels_with_notifications(connection):
                for size in _due_sizes(connection, row, now):
                    _create_message(connection, row, size, now)
                    made += 1
        return made

    def send_test(self, channel: Channel, text: str) -> Delivery:
        """Create a test message, sent at once and tried once."""
        now = self._clock.now()
        item = Notification(
            id=f"test-{secrets.token_hex(8)}", kind=NotificationKind.TEST, at=now, text=text
        )
        message = payload(channel.project, channel.name, [item.body()], now)
        with writing(self._engine) as connection:
            row = _insert(connection, channel.id, message, [item.body()], now, most_tries=1)
        return _delivery(row)

    def claim(
        self, now: datetime, lease_s: float, limit: int, without: Collection[str] = ()
    ) -> list[DeliveryLease]:
        """Lease due messages to the caller, one of each channel, fewest attempts first.

        The backlog of an unreachable receiver follows the first attempts of all others. Channels in
        `without` are omitted. An attempt is counted before it is made, so that a message that
        crashes the service is not sent forever.
        """
        due = _next_messages(now, without).limit(limit)
        with reading(self._engine) as connection:
            if not connection.execute(due.limit(1)).first():
                return []  # The usual case needs no write transaction.
        until = now + timedelta(seconds=lease_s)
        with writing(self._engine) as connection:
            _close_abandoned(connection, now)
            rows = connection.execute(due).mappings().all()
            mine = update(deliveries).where(deliveries.c.id.in_([row["id"] for row in rows]))
            connection.execute(mine.values(due_at=until, tries=deliveries.c.tries + 1))
        return [
            DeliveryLease(
                Message(id=row["id"], payload=row["payload"]),
                row["channel_id"],
                row["tries"] + 1,
                row["most_tries"],
                until,
            )
            for row in rows
        ]

    def mark_sent(self, lease: DeliveryLease) -> None:
        """Mark a message as delivered."""
        self._close(lease, DeliveryStatus.SENT, None)

    def mark_failed(self, lease: DeliveryLease, trouble: str, *, for_good: bool = False) -> None:
        """Mark a delivery as failed; it is retried unless `for_good` or after the last attempt."""
        now = self._clock.now()
        again = None if lease.tries >= lease.most_tries else next_retry_at(lease.tries, now)
        if for_good or again is None:
            self._close(lease, DeliveryStatus.DEAD, trouble)
            return
        mine = update(deliveries).where(deliveries.c.id == lease.message.id)
        # A replica that leased the message since then schedules the retry.
        mine = mine.where(deliveries.c.due_at == lease.until)
        with writing(self._engine) as connection:
            connection.execute(mine.values(due_at=again, trouble=trouble))

    def counts(self) -> dict[str, int]:
        """Messages by delivery status; without zeros."""
        query = select(deliveries.c.progress, func.count()).group_by(deliveries.c.progress)
        with reading(self._engine) as connection:
            return {status: count for status, count in connection.execute(query)}  # noqa: C416 - rows, not pairs

    def list_deliveries(
        self, *channel_ids: str, limit: int, after: str | None = None
    ) -> list[Delivery]:
        """The newest messages of channels, newest first; `after` is the id before the page.

        Raises:
            NotFound: the message of that id no longer exists.
        """
        query = select(deliveries).where(deliveries.c.channel_id.in_(channel_ids))
        if after is not None:
            last = self._read(channel_ids, after)
            # Several messages may have the same time.
            later = (deliveries.c.made_at == last.made_at) & (deliveries.c.id > last.id)
            query = query.where((deliveries.c.made_at < last.made_at) | later)
        order = deliveries.c.made_at.desc(), deliveries.c.id
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(*order).limit(limit)).mappings()
            return [_delivery(row) for row in rows]

    def read(self, channel_id: str, delivery_id: str) -> Delivery:
        """A message.

        Raises:
            NotFound: the channel has none of that id.
        """
        return self._read([channel_id], delivery_id)

    def _read(self, channel_ids: Collection[str], delivery_id: str) -> Delivery:
        mine = deliveries.c.channel_id.in_(channel_ids), deliveries.c.id == delivery_id
        with reading(self._engine) as connection:
            row = connection.execute(select(deliveries).where(*mine)).mappings().first()
        if row is None:
            raise NotFound(f"there is no message {delivery_id} of this channel")
        return _delivery(row)

    def delete_old(self) -> None:
        """Delete old messages, and the channels of jobs that ended long ago."""
        before = self._clock.now() - _RETENTION
        old = deliveries.c.made_at < before, deliveries.c.due_at.is_(None)
        with reading(self._engine) as connection:
            if not connection.execute(select(deliveries.c.id).where(*old).limit(1)).first():
                return  # Then no channel is older than its last message either.
        with writing(self._engine) as connection:
            connection.execute(delete(deliveries).where(*old))
            delete_expired(connection, before)

    def _close(self, lease: DeliveryLease, progress: DeliveryStatus, trouble: str | None) -> None:
        mine = update(deliveries).where(
            deliveries.c.id == lease.message.id, deliveries.c.progress != DeliveryStatus.SENT.value
        )
        if progress is DeliveryStatus.DEAD:
            mine = mine.where(deliveries.c.due_at == lease.until)
        change = {"progress": progress.value, "due_at": None, "trouble": trouble}
        with writing(self._engine) as connection:
            connection.execute(mine.values(**change, done_at=self._clock.now()))


def enqueue(
    connection: Connection, channel_ids: Iterable[str], item: Notification, now: datetime
) -> None:
    """Queue a notification for channels, in the transaction of its event."""
    body = item.body()
    rows = [{"channel_id": each, "id": item.id, "since": now, "body": body} for each in channel_ids]
    if rows:
        connection.execute(insert(news), rows)


def _close_abandoned(connection: Connection, now: datetime) -> None:
    """Close messages whose replica ended during the last attempt."""
    lost = deliveries.c.due_at <= now, deliveries.c.tries >= deliveries.c.most_tries
    trouble = "the service ended during the last delivery attempt; the message may have arrived"
    change = {
        "progress": DeliveryStatus.DEAD.value,
        "due_at": None,
        "trouble": trouble,
        "done_at": now,
    }
    connection.execute(update(deliveries).where(*lost).values(**change))


def _next_messages(now: datetime, without: Collection[str]) -> Select[Any]:
    """The first due message of each channel."""
    each = deliveries.c.tries, deliveries.c.due_at, deliveries.c.made_at, deliveries.c.id
    number = func.row_number().over(partition_by=deliveries.c.channel_id, order_by=each)
    due = deliveries.c.due_at <= now, deliveries.c.channel_id.not_in(without)
    ranked = select(deliveries, number.label("number")).where(*due).subquery()
    order = ranked.c.tries, ranked.c.due_at, ranked.c.made_at, ranked.c.id
    return select(ranked).where(ranked.c.number == 1).order_by(*order)


def _read_cursor(connection: Connection) -> int:
    query = select(news_marks.c.cursor).where(news_marks.c.name == _CURSOR_NAME)
    place: int = connection.execute(query).scalar_one()
    return place


def _unread_events(connection: Connection) -> Sequence[Any]:
    """The next events that may notify a channel."""
    # Events before the first channel notify no channel: a service without channels reads no log.
    first: int | None = connection.execute(select(func.min(channels.c.after_cursor))).scalar()
    if first is None:
        return ()
    place = max(first, _read_cursor(connection))
    query = select(job_events).join(jobs, jobs.c.id == job_events.c.job_id)
    query = query.where(job_events.c.cursor > place, job_events.c.kind.in_(NOTIFYING_EVENTS))
    query = query.where(subscribers_query(jobs.c.project, jobs.c.id, job_events.c.cursor).exists())
    return (
        connection.execute(query.order_by(job_events.c.cursor).limit(_BATCH_EVENTS))
        .mappings()
        .all()
    )


def _channels_with_notifications(connection: Connection) -> Sequence[Any]:
    lines = select(news.c.channel_id).distinct()
    return connection.execute(select(channels).where(channels.c.id.in_(lines))).mappings().all()


def _due_sizes(connection: Connection, channel: Any, now: datetime) -> list[int]:
    """The number of notifications in each message that is due."""
    line = select(news.c.since).where(news.c.channel_id == channel["id"])
    waiting = list(connection.execute(line.order_by(news.c.since, news.c.id)).scalars())
    recent = select(deliveries.c.made_at).where(
        deliveries.c.channel_id == channel["id"],
        deliveries.c.made_at > now - HOUR,
        deliveries.c.most_tries > 1,  # Test messages are not counted.
    )
    made = list(connection.execute(recent).scalars())
    return batch_sizes(waiting, made, preferences_from_row(channel), now)


def _create_message(connection: Connection, channel: Any, size: int, now: datetime) -> None:
    mine = news.c.channel_id == channel["id"]
    line = select(news.c.id, news.c.body).where(mine).order_by(news.c.since, news.c.id).limit(size)
    rows = connection.execute(line).all()
    bodies = [row.body for row in rows]
    text = payload(channel["project"], channel["name"], bodies, now)
    _insert(connection, channel["id"], text, bodies, now, most_tries=len(RETRY_S) + 1)
    taken = [row.id for row in rows]
    for start in range(
        0, len(taken), 500
    ):  # A number that every database accepts in one statement.
        part = taken[start : start + 500]
        connection.execute(delete(news).where(mine, news.c.id.in_(part)))


def _insert(
    connection: Connection,
    channel_id: str,
    text: str,
    bodies: Sequence[Any],
    now: datetime,
    *,
    most_tries: int,
) -> dict[str, Any]:
    row = {
        "id": f"msg_{secrets.token_hex(12)}",
        "channel_id": channel_id,
        "made_at": now,
        "progress": DeliveryStatus.WAITING.value,
        "due_at": now,
        "tries": 0,
        "most_tries": most_tries,
        "news_count": len(bodies),
        "kinds": sorted({body["kind"] for body in bodies}),
        "trouble": None,
        "done_at": None,
        "payload": text,
    }
    connection.execute(insert(deliveries).values(**row))
    return row


def _delivery(row: Any) -> Delivery:
    return Delivery(
        id=row["id"],
        channel_id=row["channel_id"],
        made_at=row["made_at"],
        progress=DeliveryStatus(row["progress"]),
        due_at=row["due_at"],
        tries=row["tries"],
        notification_count=row["news_count"],
        kinds=tuple(row["kinds"]),
        error=row["trouble"],
        done_at=row["done_at"],
    )
