"""Notification channels: preferences, message schedule and message content. Pure.

Notifications wait in a queue. A message contains one of them, or several: all of a digest interval,
or all that arrived while the channel was at its limit of messages per hour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast.domain.notifications.events import NotificationKind, body_text

HOUR: Final = timedelta(hours=1)
PER_HOUR: Final = 30
"""Default limit of messages an hour. A lower value combines notifications sooner; a higher value lets a job that is
preempted often flood a chat."""
MAX_LISTED: Final = 50
"""Notifications listed in one message; the rest are counted. A lower value hides more; chats refuse larger messages."""
MAX_TEXT_CHARS: Final = 500
"""Characters of one notification. A lower value cuts launcher messages; with a higher one, chats refuse fifty of them."""
RETRY_S: Final = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds between delivery attempts as in Standard Webhooks, about three days in total.

A shorter schedule gives up on a receiver that is down over a weekend; a longer one delivers outdated messages.
"""
ROTATION_GRACE: Final = timedelta(hours=24)
"""Time in which messages are also signed with the previous secret. A lower value fails receivers that are not updated yet; a
higher value trusts a leaked secret longer.
"""


class TransportKind(StrEnum):
    """Transport of a message."""

    WEBHOOK = "webhook"
    MAIL = "mail"
    CHAT = "chat"


class DeliveryStatus(StrEnum):
    """Delivery status of a message."""

    WAITING = "waiting"
    """To be sent, for the first time or again."""
    SENT = "sent"
    DEAD = "dead"
    """Delivery abandoned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """Destination of a channel without its secrets."""

    transport: TransportKind
    shown: str
    """Scheme and host for display."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelPreferences:
    """Notification preferences of a channel."""

    kinds: frozenset[NotificationKind] = frozenset()
    """Kinds to send; empty for all."""
    digest_s: int = 0
    """Seconds for which notifications are collected into one message; 0 sends each separately."""
    per_hour: int = PER_HOUR

    def accepts(self, kind: NotificationKind) -> bool:
        """Whether the channel wants notifications of this kind."""
        return not self.kinds or kind in self.kinds


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message, identical in every delivery attempt."""

    id: str
    """Id by which a receiver detects duplicates."""
    payload: str
    """JSON payload for webhooks."""

    @property
    def kinds(self) -> frozenset[NotificationKind]:
        """Kinds of the notifications in the message."""
        data = json.loads(self.payload)["data"]
        return frozenset(NotificationKind(item["kind"]) for item in data["news"])

    @property
    def subject(self) -> str:
        """Subject line of the message."""
        data = json.loads(self.payload)["data"]
        count = len(data["news"]) + data["left_out"]
        one = data["news"][0]["text"]
        return (
            f"[{data['project']}] {one if count == 1 else f'{count} notifications from Holdfast'}"
        )

    @property
    def text(self) -> str:
        """Complete text of the message."""
        data = json.loads(self.payload)["data"]
        return _lines([body_text(item) for item in data["news"]], data["left_out"])

    def truncated(self, most: int) -> str:
        """Text of the newest notifications within `most` characters; a single one may be cut."""
        data = json.loads(self.payload)["data"]
        lines, left_out = [body_text(item) for item in data["news"]], data["left_out"]
        while len(lines) > 1 and len(_lines(lines, left_out)) > most:
            lines, left_out = lines[1:], left_out + 1
        return _truncate(_lines(lines, left_out), max(1, most))


def payload(project: str, channel: str, news: Sequence[Mapping[str, Any]], now: datetime) -> str:
    """Payload with the newest of `news`, given oldest first, and the number left out."""
    listed = [
        {**item, "text": _truncate(item["text"], MAX_TEXT_CHARS)} for item in news[-MAX_LISTED:]
    ]
    data = {
        "project": project,
        "channel": channel,
        "news": listed,
        "left_out": len(news) - len(listed),
    }
    return json.dumps({"type": "holdfast.news", "timestamp": now.isoformat(), "data": data})


def batch_sizes(
    waiting: Sequence[datetime], made: Sequence[datetime], manner: ChannelPreferences, now: datetime
) -> list[int]:
    """Number of notifications in each message to send now, oldest first; empty if none is due.

    `waiting` lists when each notification arrived, ascending; `made` lists when messages were made within the last hour. With capacity
    for all of them each is sent separately; otherwise all are combined once there is capacity for one.
    """
    room = manner.per_hour - sum(1 for at in made if now - at < HOUR)
    if not waiting or room < 1:
        return []
    if manner.digest_s:
        gathered = now - waiting[0] >= timedelta(seconds=manner.digest_s)
        return [len(waiting)] if gathered else []
    return [1] * len(waiting) if len(waiting) <= room else [len(waiting)]


def next_retry_at(tries: int, now: datetime) -> datetime | None:
    """Time of the next delivery attempt after this many failures; None after the last."""
    if tries > len(RETRY_S):
        return None
    return now + timedelta(seconds=RETRY_S[tries - 1])


def _lines(lines: Sequence[str], left_out: int) -> str:
    more = [f"and {left_out} more; list them with holdfast events"] if left_out else []
    return "\n".join([*lines, *more])


def _truncate(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
