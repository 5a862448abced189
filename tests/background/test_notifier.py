"""The notifier with one unresponsive receiver among others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from holdfast.domain.notifications.channels import ChannelPreferences, Message
from sqlalchemy import Engine
from support.notifications import (
    ADA,
    LOSS,
    URL,
    WEBHOOK,
    NotificationHarness,
    RecordingSender,
    open_notifications,
)

SLOW = "https://slow.example/hook"
PATIENCE_S = 60.0


@dataclass
class SlowSender(RecordingSender):
    """A notifier one of whose receivers does not respond until an event is set."""

    gate: threading.Event = field(default_factory=threading.Event)

    def send(self, url: str, secrets: Sequence[str], message: Message) -> None:
        super().send(url, secrets, message)
        if url == SLOW:
            self.gate.wait(PATIENCE_S)

    def received(self, url: str) -> int:
        """The number of messages that a receiver was sent."""
        return sum(1 for to, _, _ in self.got if to == url)


@pytest.fixture
def harness(engine: Engine) -> NotificationHarness:
    return replace(open_notifications(engine), desk=SlowSender())


async def until(came: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not came():  # noqa: ASYNC110 - threads do not signal a loop
            await asyncio.sleep(0.05)


def test_silent_receiver_delays_no_other_and_no_shutdown(
    harness: NotificationHarness,
) -> None:
    sender = harness.desk
    assert isinstance(sender, SlowSender)
    for name, url in (("slow", SLOW), ("quick", URL)):
        harness.channels.add(
            "default", name, url, destination=WEBHOOK, preferences=ChannelPreferences(), actor=ADA
        )

    async def go_about() -> None:
        running = asyncio.create_task(harness.notifier().run())
        harness.job("job-1", *LOSS)
        await until(lambda: sender.received(SLOW) == 1 and sender.received(URL) == 1)
        harness.job("job-2", *LOSS)
        await until(lambda: sender.received(URL) == 2)
        running.cancel()
        await asyncio.wait([running], timeout=PATIENCE_S)
        assert running.cancelled()

    try:
        asyncio.run(go_about())

        assert sender.received(SLOW) == 1
    finally:
        sender.gate.set()
        # Its thread records the delivery in a database that this test will delete.
        asyncio.run(
            until(lambda: not any(t.name.startswith("notify") for t in threading.enumerate()))
        )
