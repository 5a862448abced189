"""Creates notifications from events and sends them in a thread pool.

Each channel has at most one message in delivery, so a slow receiver blocks one thread and only its own messages.
The loop never waits for a delivery.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from functools import partial
from threading import Lock
from typing import Final

from holdfast.errors import BadChannel, NotDelivered, StoreUnavailable
from holdfast.ports import Clock, Messenger
from holdfast.store.notifications.channels import Channels
from holdfast.store.notifications.outbox import DeliveryLease, Outbox

log = logging.getLogger(__name__)

EVERY_S: Final = 2.0
"""Seconds between two rounds. A lower value adds empty queries; a higher value delays
notifications."""
MAX_CONCURRENT: Final = 16
"""Messages in delivery at once. A lower value lets that many slow receivers delay all
others; a higher value uses more memory."""
CLEANUP_EVERY: Final = timedelta(hours=1)
"""Time between two deletions of old messages. A lower value adds empty queries; a higher
value keeps them for longer."""
LEASE_S: Final = 120.0
"""Seconds for which a message is leased to a replica. A value below the duration of a
delivery sends it twice; a higher value delays the messages of a replica that died."""


class Notifier:
    """Sends notifications."""

    def __init__(
        self, *, outbox: Outbox, channels: Channels, messenger: Messenger, clock: Clock
    ) -> None:
        self._outbox = outbox
        self._channels = channels
        self._messenger = messenger
        self._clock = clock
        self._under_way: dict[str, Future[None]] = {}
        self._lock = Lock()
        self._cleaned_up_at: datetime | None = None
        """None before the first cleanup."""

    def run_once(self, threads: ThreadPoolExecutor) -> int:
        """Run one round; return the number of messages handed to `threads`.

        Raises:
            StoreUnavailable: the database is unavailable; the next round finds whatever was not recorded.
        """
        while self._outbox.enqueue_new_events():
            pass
        self._outbox.create_messages()
        now = self._clock.now()
        if self._cleaned_up_at is None or now - self._cleaned_up_at >= CLEANUP_EVERY:
            self._outbox.delete_old()
            self._cleaned_up_at = now
        with self._lock:
            busy = set(self._under_way)
        free = MAX_CONCURRENT - len(busy)
        if not free:
            return 0
        leases = self._outbox.claim(now, LEASE_S, free, busy)
        for lease in leases:
            task = threads.submit(self.deliver, lease)
            with self._lock:
                self._under_way[lease.channel_id] = task
            task.add_done_callback(partial(self._forget, lease))
        return len(leases)

    def run_once_and_wait(self) -> int:
        """Run one round and wait for its deliveries; return the number of messages tried."""
        with ThreadPoolExecutor(MAX_CONCURRENT, "notify") as threads:
            started = self.run_once(threads)
            with self._lock:
                tasks = list(self._under_way.values())
            wait(tasks)
        return started

    def deliver(self, lease: DeliveryLease) -> None:
        """Send one message and record the result."""
        target = self._channels.open(lease.channel_id)
        if target is None:
            # Another replica may have the secret.
            reason = "the channel was encrypted with another service's secret; add it again"
            self._outbox.mark_failed(lease, reason)
            return
        try:
            self._messenger.send(target.url, target.secrets, lease.message)
        except NotDelivered as error:
            log.warning("message %s was not delivered: %s", lease.message.id, error.detail)
            self._outbox.mark_failed(lease, error.detail, for_good=error.for_good)
        except BadChannel as error:
            self._outbox.mark_failed(lease, error.detail)
        else:
            self._outbox.mark_sent(lease)

    async def run(self) -> None:
        """Run until cancelled.

        An unexpected error in one round does not stop the later ones.
        """
        threads = ThreadPoolExecutor(MAX_CONCURRENT, "notify")
        round_: asyncio.Task[int] | None = None
        try:
            while True:
                round_ = asyncio.create_task(asyncio.to_thread(self.run_once, threads))
                await asyncio.wait([round_])
                if isinstance(error := round_.exception(), StoreUnavailable):
                    log.warning("notifications are delayed: %s", error.detail)
                elif error:
                    log.error("unexpected error in notifications; next round in %g s", EVERY_S, exc_info=error)  # fmt: skip
                await asyncio.sleep(EVERY_S)
        finally:
            # A message handed over now would be blocked until its lease expires.
            if round_:
                await asyncio.wait([round_])
            threads.shutdown(wait=False, cancel_futures=True)

    def _forget(self, lease: DeliveryLease, task: Future[None]) -> None:
        with self._lock:
            self._under_way.pop(lease.channel_id, None)
        if task.cancelled():
            return
        if isinstance(error := task.exception(), StoreUnavailable):
            log.warning(
                "message %s: %s", lease.message.id, error.detail
            )  # It is sent again when its lease expires.
        elif error:
            log.error(
                "unexpected error with message %s; it is sent again",
                lease.message.id,
                exc_info=error,
            )
