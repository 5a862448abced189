"""The outbox: news that waits for its message, and messages that wait to be sent.

Facts are followed by their cursor, which is in the order of commits: the place up to which they were looked at moves
in the transaction that puts their news in line, so that each is put there once, whatever is killed. A message is
made once, with an id and a text of its own, and may be sent more than once.
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
    batches,
    next_try,
    payload,
)
from holdfast.domain.notifications.events import FACTS, NewsKind, Notification, news_of
from holdfast.errors import NotFound
from holdfast.ports import Clock
from holdfast.store import event_log
from holdfast.store.channels import Channel, forget_over, is_heard, listening, manner_of, newest
from holdfast.store.database import reading, writing
from holdfast.store.tables.jobs import job_events, jobs
from holdfast.store.tables.notifications import channels, deliveries, news, news_marks

_PIECE: Final = 200
"""Facts that are looked at in one transaction. Smaller: more transactions after a pause. Bigger: others wait longer."""
_BEHIND: Final = 1000
"""Events without news after which the place is moved all the same. Smaller: more transactions. Bigger: each look reads
so many events again."""
_KEPT: Final = timedelta(days=30)
"""How long it is shown what was sent. Smaller: nobody can look up last month. Bigger: the table grows."""
_EVENTS: Final = "events"


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A message, and what became of it."""

    id: str
    channel_id: str
    made_at: datetime
    progress: DeliveryStatus
    due_at: datetime | None
    """When it is sent next; None: it is not sent any more."""
    tries: int
    news_count: int
    kinds: tuple[str, ...]
    trouble: str | None
    """Why the last try failed; None if it did not."""
    done_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeliveryLease:
    """A message that is this replica's to send, for now."""

    letter: Message
    channel_id: str
    tries: int
    """With this one."""
    most_tries: int
    until: datetime


class Outbox:
    """What is to be told, and what was."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def follow(self) -> int:
        """Put the news among new facts in line; how many facts were looked at."""
        with reading(self._engine) as connection:
            behind = newest(connection) - _place(connection)
            if behind < _BEHIND and not _unread(connection):
                return 0  # The usual case takes no writer's turn.
        with writing(self._engine) as connection:
            rows = _unread(connection)
            for row in rows:
                job = event_log.read(connection, row["job_id"])
                event = decode(row["kind"], row["at"], row["body"])
                item = news_of(job.id, job.name, row["seq"], event)
                if item is not None:
                    heard = listening(connection, job.project, job.id, item.kind, row["cursor"])
                    tell(connection, heard, item, self._clock.now())
            # Nobody else writes meanwhile: up to the newest, nothing was passed by.
            place = rows[-1]["cursor"] if len(rows) == _PIECE else newest(connection)
            mine = update(news_marks).where(news_marks.c.name == _EVENTS)
            connection.execute(mine.values(cursor=place))
        return len(rows)

    def pack(self) -> int:
        """Make messages of the news that is due; how many."""
        now = self._clock.now()
        with reading(self._engine) as connection:
            if not any(_due(connection, row, now) for row in _with_news(connection)):
                return 0
        made = 0
        with writing(self._engine) as connection:
            for row in _with_news(connection):
                for size in _due(connection, row, now):
                    _make(connection, row, size, now)
                    made += 1
        return made

    def test(self, channel: Channel, text: str) -> Delivery:
        """A message that is sent at once, and tried once."""
        now = self._clock.now()
        item = Notification(
            id=f"test-{secrets.token_hex(8)}", kind=NewsKind.TEST, at=now, text=text
        )
        told = payload(channel.project, channel.name, [item.body()], now)
        with writing(self._engine) as connection:
            row = _insert(connection, channel.id, told, [item.body()], now, most_tries=1)
        return _delivery(row)

    def claim(
        self, now: datetime, lease_s: float, limit: int, without: Collection[str] = ()
    ) -> list[DeliveryLease]:
        """Messages that are due, now leased to the caller: one of each channel, those that were tried least first.

        However many wait for a receiver that is down, they come after the first tries of all others. Channels of
        `without` are left alone. A try is counted before it is made, so that a message on which a service dies is not
        sent for ever.
        """
        due = _firsts(now, without).limit(limit)
        with reading(self._engine) as connection:
            if not connection.execute(due.limit(1)).first():
                return []  # The usual case takes no writer's turn.
        until = now + timedelta(seconds=lease_s)
        with writing(self._engine) as connection:
            _give_up(connection, now)
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

    def sent(self, turn: DeliveryLease) -> None:
        """It was taken."""
        self._close(turn, DeliveryStatus.SENT, None)

    def failed(self, turn: DeliveryLease, trouble: str, *, for_good: bool = False) -> None:
        """It was not taken; it is sent again, unless `for_good` or after its last try."""
        now = self._clock.now()
        again = None if turn.tries >= turn.most_tries else next_try(turn.tries, now)
        if for_good or again is None:
            self._close(turn, DeliveryStatus.DEAD, trouble)
            return
        mine = update(deliveries).where(deliveries.c.id == turn.letter.id)
        # Whoever took over since, as the lease was over, says himself when it is sent again.
        mine = mine.where(deliveries.c.due_at == turn.until)
        with writing(self._engine) as connection:
            connection.execute(mine.values(due_at=again, trouble=trouble))

    def log(self, *channel_ids: str, limit: int, after: str | None = None) -> list[Delivery]:
        """The newest messages of channels, newest first; `after` goes on behind the message of that id.

        Raises:
            NotFound: there is none of that id any more.
        """
        query = select(deliveries).where(deliveries.c.channel_id.in_(channel_ids))
        if after is not None:
            last = self._read(channel_ids, after)
            # Many are made at one moment.
            later = (deliveries.c.made_at == last.made_at) & (deliveries.c.id > last.id)
            query = query.where((deliveries.c.made_at < last.made_at) | later)
        order = deliveries.c.made_at.desc(), deliveries.c.id
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(*order).limit(limit)).mappings()
            return [_delivery(row) for row in rows]

    def read(self, channel_id: str, delivery_id: str) -> Delivery:
        """One message.

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

    def tidy(self) -> None:
        """Forget messages of which nobody need know any more."""
        before = self._clock.now() - _KEPT
        old = deliveries.c.made_at < before, deliveries.c.due_at.is_(None)
        with reading(self._engine) as connection:
            if not connection.execute(select(deliveries.c.id).where(*old).limit(1)).first():
                return  # Nor is a channel over whose last message is not.
        with writing(self._engine) as connection:
            connection.execute(delete(deliveries).where(*old))
            forget_over(connection, before)

    def _close(self, turn: DeliveryLease, progress: DeliveryStatus, trouble: str | None) -> None:
        mine = update(deliveries).where(
            deliveries.c.id == turn.letter.id, deliveries.c.progress != DeliveryStatus.SENT.value
        )
        if progress is DeliveryStatus.DEAD:
            mine = mine.where(deliveries.c.due_at == turn.until)
        change = {"progress": progress.value, "due_at": None, "trouble": trouble}
        with writing(self._engine) as connection:
            connection.execute(mine.values(**change, done_at=self._clock.now()))


def tell(connection: Connection, heard: Iterable[str], item: Notification, now: datetime) -> None:
    """Put a piece of news in line for channels, in the transaction of what it tells."""
    body = item.body()
    rows = [{"channel_id": each, "id": item.id, "since": now, "body": body} for each in heard]
    if rows:
        connection.execute(insert(news), rows)


def _give_up(connection: Connection, now: datetime) -> None:
    """Close what nobody came back from at its last try."""
    lost = deliveries.c.due_at <= now, deliveries.c.tries >= deliveries.c.most_tries
    trouble = "the service ended while it was sent for the last time; it may have arrived"
    change = {
        "progress": DeliveryStatus.DEAD.value,
        "due_at": None,
        "trouble": trouble,
        "done_at": now,
    }
    connection.execute(update(deliveries).where(*lost).values(**change))


def _firsts(now: datetime, without: Collection[str]) -> Select[Any]:
    """Of each channel the message that is to be tried first, if one is due."""
    each = deliveries.c.tries, deliveries.c.due_at, deliveries.c.made_at, deliveries.c.id
    number = func.row_number().over(partition_by=deliveries.c.channel_id, order_by=each)
    due = deliveries.c.due_at <= now, deliveries.c.channel_id.not_in(without)
    ranked = select(deliveries, number.label("number")).where(*due).subquery()
    order = ranked.c.tries, ranked.c.due_at, ranked.c.made_at, ranked.c.id
    return select(ranked).where(ranked.c.number == 1).order_by(*order)


def _place(connection: Connection) -> int:
    query = select(news_marks.c.cursor).where(news_marks.c.name == _EVENTS)
    place: int = connection.execute(query).scalar_one()
    return place


def _unread(connection: Connection) -> Sequence[Any]:
    """The next facts that may be news to somebody."""
    # What was before all channels is news to nobody: a service that nobody listens to reads no log.
    first: int | None = connection.execute(select(func.min(channels.c.after_cursor))).scalar()
    if first is None:
        return ()
    place = max(first, _place(connection))
    query = select(job_events).join(jobs, jobs.c.id == job_events.c.job_id)
    query = query.where(job_events.c.cursor > place, job_events.c.kind.in_(FACTS))
    query = query.where(is_heard(jobs.c.project, jobs.c.id, job_events.c.cursor).exists())
    return connection.execute(query.order_by(job_events.c.cursor).limit(_PIECE)).mappings().all()


def _with_news(connection: Connection) -> Sequence[Any]:
    lines = select(news.c.channel_id).distinct()
    return connection.execute(select(channels).where(channels.c.id.in_(lines))).mappings().all()


def _due(connection: Connection, channel: Any, now: datetime) -> list[int]:
    """How many pieces of news each message of now takes."""
    line = select(news.c.since).where(news.c.channel_id == channel["id"])
    waiting = list(connection.execute(line.order_by(news.c.since, news.c.id)).scalars())
    recent = select(deliveries.c.made_at).where(
        deliveries.c.channel_id == channel["id"],
        deliveries.c.made_at > now - HOUR,
        deliveries.c.most_tries > 1,  # Tests are not counted.
    )
    made = list(connection.execute(recent).scalars())
    return batches(waiting, made, manner_of(channel), now)


def _make(connection: Connection, channel: Any, size: int, now: datetime) -> None:
    mine = news.c.channel_id == channel["id"]
    line = select(news.c.id, news.c.body).where(mine).order_by(news.c.since, news.c.id).limit(size)
    rows = connection.execute(line).all()
    bodies = [row.body for row in rows]
    told = payload(channel["project"], channel["name"], bodies, now)
    _insert(connection, channel["id"], told, bodies, now, most_tries=len(RETRY_S) + 1)
    taken = [row.id for row in rows]
    for start in range(0, len(taken), 500):  # As many as any database takes in one statement.
        part = taken[start : start + 500]
        connection.execute(delete(news).where(mine, news.c.id.in_(part)))


def _insert(
    connection: Connection,
    channel_id: str,
    told: str,
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
        "payload": told,
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
        news_count=row["news_count"],
        kinds=tuple(row["kinds"]),
        trouble=row["trouble"],
        done_at=row["done_at"],
    )
