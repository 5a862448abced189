"""Notifications with the real tables and notifier, and a sender that records messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.background.notifier import Notifier
from holdfast.domain.access.audit import Actor
from holdfast.domain.events import Event
from holdfast.domain.notifications.channels import (
    ChannelPreferences,
    Destination,
    Message,
    TransportKind,
)
from holdfast.store.journal import Journal
from holdfast.store.notifications.channels import Channel, Channels
from holdfast.store.notifications.outbox import Outbox
from sqlalchemy import Engine
from support.events import launched, lost, ready, submitted
from support.fakes import FixedClock

WEBHOOK = Destination(transport=TransportKind.WEBHOOK, shown="https://example.com")
ADA = Actor(name="ada")
URL = "https://example.com/hush-hush"
LOSS = (launched(1), ready(2), lost(3))


@dataclass
class RecordingSender:
    """A sender that records its messages."""

    got: list[tuple[str, Sequence[str], Message]] = field(default_factory=list)
    trouble: Callable[[], None] = lambda: None
    """Called after a message was recorded."""

    def destination(self, url: str) -> Destination:
        return WEBHOOK

    def send(self, url: str, secrets: Sequence[str], letter: Message) -> None:
        self.got.append((url, secrets, letter))
        self.trouble()

    @property
    def told(self) -> list[list[str]]:
        """Event ids of each message."""
        letters = [json.loads(letter.payload) for _, _, letter in self.got]
        return [[item["id"] for item in letter["data"]["news"]] for letter in letters]


@dataclass
class NotificationHarness:
    engine: Engine
    clock: FixedClock
    journal: Journal
    channels: Channels
    outbox: Outbox
    desk: RecordingSender

    def notifier(self) -> Notifier:
        return Notifier(
            outbox=self.outbox, channels=self.channels, messenger=self.desk, clock=self.clock
        )

    def channel(self, name: str = "ops", project: str = "default", **words: object) -> Channel:
        manner = replace(ChannelPreferences(), **words)
        return self.channels.add(
            project, name, URL, destination=WEBHOOK, preferences=manner, actor=ADA
        )[0]

    def job(self, job_id: str, *events: Event) -> None:
        job = self.journal.submit(job_id, submitted())
        self.journal.append(job, events)


def open_notifications(engine: Engine) -> NotificationHarness:
    """Return a harness without channels."""
    clock = FixedClock()
    journal = Journal(engine, clock)
    channels = Channels(engine, clock, b"secret")
    return NotificationHarness(
        engine, clock, journal, channels, Outbox(engine, clock), RecordingSender()
    )
