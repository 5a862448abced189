"""The notifier: follows what happens, makes messages of it, and sends them from threads of its own.

A slow receiver holds one thread, and no message but its own: of each channel one message is under way at a time, and
the loop never waits for any.
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
from holdfast.store.channels import Channels
from holdfast.store.outbox import DeliveryLease, Outbox

log = logging.getLogger(__name__)

EVERY_S: Final = 2.0
"""Between two looks. Smaller: more queries that find nothing. Bigger: people hear so much later."""
THREADS: Final = 16
"""Messages under way at once. Smaller: so many slow receivers hold up all others. Bigger: more memory."""
TIDY: Final = timedelta(hours=1)
"""Between two looks for what is old. Smaller: more queries that find nothing. Bigger: it is there so much longer."""
LEASE_S: Final = 120.0
"""How long a message is a replica's own. Smaller than a try takes: it is sent twice. Bigger: what a replica had in
hand when it died comes so much later."""


class Notifier:
    """Tells people."""

    def __init__(
        self, *, outbox: Outbox, channels: Channels, messenger: Messenger, clock: Clock
    ) -> None:
        self._outbox = outbox
        self._channels = channels
        self._messenger = messenger
        self._clock = clock
        self._under_way: dict[str, Future[None]] = {}
        self._lock = Lock()
        self._tidied_at: datetime | None = None
        """None: not since this began."""

    def look(self, threads: ThreadPoolExecutor) -> int:
        """One look: how many messages were given to `threads`.

        Raises:
            StoreUnavailable: the database cannot be used; what is not written is found again.
        """
        while self._outbox.follow():
            pass
        self._outbox.pack()
        now = self._clock.now()
        if self._tidied_at is None or now - self._tidied_at >= TIDY:
            self._outbox.tidy()
            self._tidied_at = now
        with self._lock:
            busy = set(self._under_way)
        free = THREADS - len(busy)
        if not free:
            return 0
        turns = self._outbox.claim(now, LEASE_S, free, busy)
        for turn in turns:
            task = threads.submit(self.deliver, turn)
            with self._lock:
                self._under_way[turn.channel_id] = task
            task.add_done_callback(partial(self._forget, turn))
        return len(turns)

    def look_and_wait(self) -> int:
        """One look, and all that it began; how many messages were tried."""
        with ThreadPoolExecutor(THREADS, "notify") as threads:
            begun = self.look(threads)
            with self._lock:
                tasks = list(self._under_way.values())
            wait(tasks)
        return begun

    def deliver(self, turn: DeliveryLease) -> None:
        """Send one message, and write down what became of it."""
        target = self._channels.open(turn.channel_id)
        if target is None:
            # Another replica may have the secret.
            trouble = (
                "its channel was sealed under another secret than this service's; add it again"
            )
            self._outbox.failed(turn, trouble)
            return
        try:
            self._messenger.send(target.url, target.secrets, turn.letter)
        except NotDelivered as error:
            log.warning("message %s was not taken: %s", turn.letter.id, error.detail)
            self._outbox.failed(turn, error.detail, for_good=error.for_good)
        except BadChannel as error:
            self._outbox.failed(turn, error.detail)
        else:
            self._outbox.sent(turn)

    async def go_on(self) -> None:
        """Look until cancelled. A bug that one look brings to light stops none of the later ones."""
        threads = ThreadPoolExecutor(THREADS, "notify")
        look: asyncio.Task[int] | None = None
        try:
            while True:
                look = asyncio.create_task(asyncio.to_thread(self.look, threads))
                await asyncio.wait([look])
                if isinstance(error := look.exception(), StoreUnavailable):
                    log.warning("nobody is notified: %s", error.detail)
                elif error:
                    log.error("a bug in notifying; the next look is in %g s", EVERY_S, exc_info=error)  # fmt: skip
                await asyncio.sleep(EVERY_S)
        finally:
            # What it still gives to threads would be nobody's until its lease is over.
            if look:
                await asyncio.wait([look])
            threads.shutdown(wait=False, cancel_futures=True)

    def _forget(self, turn: DeliveryLease, task: Future[None]) -> None:
        with self._lock:
            self._under_way.pop(turn.channel_id, None)
        if task.cancelled():
            return
        if isinstance(error := task.exception(), StoreUnavailable):
            log.warning("message %s: %s", turn.letter.id, error.detail)  # Its lease brings it back.
        elif error:
            log.error("a bug with message %s; it is tried again", turn.letter.id, exc_info=error)
