"""Where news goes: what a channel asks for, when its next message is due, and what that message says. Pure.

News waits in line. A message takes one piece of it, or many: all of a digest interval, and all that came while a
channel had been sent as many messages as it wants in an hour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast.domain.notifications.events import NewsKind, body_text

HOUR: Final = timedelta(hours=1)
PER_HOUR: Final = 30
"""Messages an hour where nobody says. Smaller: single news is gathered sooner. Bigger: a job that loses its nodes all
the time fills a room."""
MOST_LISTED: Final = 50
"""Pieces of news that one message tells; the rest it counts. Smaller: more is only counted. Bigger: chats refuse it."""
LONGEST_TEXT: Final = 500
"""Characters of one piece of news. Smaller cuts what launchers say. Bigger: fifty of them are refused by chats."""
RETRY_S: Final = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds between tries, as Standard Webhooks has them: about three days in all. Shorter gives a receiver up that is
down over a weekend; longer tells what nobody needs any more."""
ROTATION_GRACE: Final = timedelta(hours=24)
"""How long messages are signed with the secret before, too. Smaller: receivers that were not told yet refuse them.
Bigger: one that was rotated because it may be known is believed for longer."""


class TransportKind(StrEnum):
    """How a message travels."""

    WEBHOOK = "webhook"
    MAIL = "mail"
    CHAT = "chat"


class DeliveryStatus(StrEnum):
    """What became of a message."""

    WAITING = "waiting"
    """To be sent, for the first time or again."""
    SENT = "sent"
    DEAD = "dead"
    """Given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """Where a channel leads, without what is secret in it."""

    way: TransportKind
    shown: str
    """Scheme and host, for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelPreferences:
    """What a channel asks for."""

    kinds: frozenset[NewsKind] = frozenset()
    """Empty: all."""
    digest_s: int = 0
    """How long news is gathered for one message; 0: each goes by itself."""
    per_hour: int = PER_HOUR

    def wants(self, kind: NewsKind) -> bool:
        """Whether news of this kind goes there."""
        return not self.kinds or kind in self.kinds


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message, the same at every try."""

    id: str
    """By which a receiver knows that it has it already."""
    payload: str
    """JSON, as webhooks get it."""

    @property
    def kinds(self) -> frozenset[NewsKind]:
        """What it is about."""
        told = json.loads(self.payload)["data"]
        return frozenset(NewsKind(item["kind"]) for item in told["news"])

    @property
    def subject(self) -> str:
        """A line that says what it is about."""
        told = json.loads(self.payload)["data"]
        count = len(told["news"]) + told["left_out"]
        one = told["news"][0]["text"]
        return f"[{told['project']}] {one if count == 1 else f'{count} news from Holdfast'}"

    @property
    def text(self) -> str:
        """The whole, for people."""
        told = json.loads(self.payload)["data"]
        return _lines([body_text(item) for item in told["news"]], told["left_out"])

    def within(self, most: int) -> str:
        """As much of the newest as so many characters hold, for people; a single piece may be cut."""
        told = json.loads(self.payload)["data"]
        lines, left_out = [body_text(item) for item in told["news"]], told["left_out"]
        while len(lines) > 1 and len(_lines(lines, left_out)) > most:
            lines, left_out = lines[1:], left_out + 1
        return _cut(_lines(lines, left_out), max(1, most))


def payload(project: str, channel: str, news: Sequence[Mapping[str, Any]], now: datetime) -> str:
    """What a message says: the newest of `news`, which are given oldest first, and how many are left out."""
    listed = [{**item, "text": _cut(item["text"], LONGEST_TEXT)} for item in news[-MOST_LISTED:]]
    data = {
        "project": project,
        "channel": channel,
        "news": listed,
        "left_out": len(news) - len(listed),
    }
    return json.dumps({"type": "holdfast.news", "timestamp": now.isoformat(), "data": data})


def batches(
    waiting: Sequence[datetime], made: Sequence[datetime], manner: ChannelPreferences, now: datetime
) -> list[int]:
    """How many pieces of news each message of now takes, the oldest first; none where none is due.

    `waiting` is since when each piece waits, ascending; `made` is when messages were made within the last hour. With
    room for all of them each goes alone; else all go together as soon as there is room for one.
    """
    room = manner.per_hour - sum(1 for at in made if now - at < HOUR)
    if not waiting or room < 1:
        return []
    if manner.digest_s:
        gathered = now - waiting[0] >= timedelta(seconds=manner.digest_s)
        return [len(waiting)] if gathered else []
    return [1] * len(waiting) if len(waiting) <= room else [len(waiting)]


def next_try(tries: int, now: datetime) -> datetime | None:
    """When to try again after so many tries that failed; None: never."""
    if tries > len(RETRY_S):
        return None
    return now + timedelta(seconds=RETRY_S[tries - 1])


def _lines(lines: Sequence[str], left_out: int) -> str:
    more = [f"and {left_out} more, which holdfast events tells"] if left_out else []
    return "\n".join([*lines, *more])


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
