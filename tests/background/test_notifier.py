"""The notifier at work: one receiver that does not answer, and all others."""

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
class SlowDesk(RecordingSender):
    """A notifier one of whose receivers does not respond until an event is set."""

    gate: threading.Event = field(default_factory=threading.Event)

    def send(self, url: str, secrets: Sequence[str], letter: Message) -> None:
        super().send(url, secrets, letter)
        if url == SLOW:
            self.gate.wait(PATIENCE_S)

    def heard(self, url: str) -> int:
        """How many messages a receiver was sent."""
        return sum(1 for to, _, _ in self.got if to == url)


@pytest.fixture
def harness(engine: Engine) -> NotificationHarness:
    return replace(open_notifications(engine), desk=SlowDesk())


async def until(came: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not came():  # noqa: ASYNC110 - threads do not signal a loop
            await asyncio.sleep(0.05)


def test_silent_receiver_delays_no_other_and_no_shutdown(
    harness: NotificationHarness,
) -> None:
    desk = harness.desk
    assert isinstance(desk, SlowDesk)
    for name, url in (("slow", SLOW), ("quick", URL)):
        harness.channels.add(
            "default", name, url, destination=WEBHOOK, preferences=ChannelPreferences(), actor=ADA
        )

    async def go_about() -> None:
        going_on = asyncio.create_task(harness.notifier().run())
        harness.job("job-1", *LOSS)
        await until(lambda: desk.heard(SLOW) == 1 and desk.heard(URL) == 1)
        harness.job("job-2", *LOSS)
        await until(lambda: desk.heard(URL) == 2)
        going_on.cancel()
        await asyncio.wait([going_on], timeout=PATIENCE_S)
        assert going_on.cancelled()

    try:
        asyncio.run(go_about())

        assert desk.heard(SLOW) == 1
    finally:
        desk.gate.set()
        # Its thread writes down what became of the message, in a database that this test will take away.
        asyncio.run(
            until(lambda: not any(t.name.startswith("notify") for t in threading.enumerate()))
        )
