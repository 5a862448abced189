"""The heart: the thread in which the reconciler beats, with an event loop of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, Final, TypeVar

from holdfast.controller.launcher_health import LauncherHealthMonitor
from holdfast.controller.reconciler import PollIntervals, Reconciler, run
from holdfast.errors import LauncherUnreachable

T = TypeVar("T")

BEAT_S: Final = 1.0
STALLED_S: Final = 15.0
"""Without a beat for so long, the thread is stuck. A lower value takes a busy machine for it; a higher value hides it longer."""


@dataclass
class ControllerThread:
    """The thread in which the reconciler beats."""

    reconciler: Reconciler
    pace: PollIntervals
    pulse: LauncherHealthMonitor
    beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    """What else goes on in this thread until the end, and is cancelled then."""
    monotonic_s: Callable[[], float] = time.monotonic
    _beat_s: float = -STALLED_S
    """When the event loop last had a turn to give."""
    _ready: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def start(self) -> None:
        """Begin to beat; returns once it does."""
        self._thread = Thread(
            target=lambda: asyncio.run(self._beat()), name="reconciler", daemon=True
        )
        self._thread.start()
        self._ready.wait()

    def nudge(self) -> None:
        """Beat now."""
        if self._ready.is_set():
            self._loop.call_soon_threadsafe(self._nudged.set)

    def call(self, question: Coroutine[Any, Any, T], /) -> Awaitable[T]:
        """The answer to what a launcher is asked, in this thread: its connections belong to the event loop in it.

        Raises:
            LauncherUnreachable: the heart does not beat.
        """
        if not self.is_alive():
            question.close()
            raise LauncherUnreachable(
                "the reconciler has stopped or is stuck, and asks no launcher"
            )
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(question, self._loop))

    def is_alive(self) -> bool:
        """Whether the reconciler runs: its thread is alive, and no call blocks the event loop in it."""
        is_alive = self._thread is not None and self._thread.is_alive()
        return is_alive and self.monotonic_s() - self._beat_s < STALLED_S

    def stop(self) -> None:
        """End after the steps under way."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self.nudge()
        assert self._thread is not None
        self._thread.join(timeout=30)

    async def _beat(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._nudged, self._stopped = asyncio.Event(), asyncio.Event()
        self._beat_s = self.monotonic_s()
        self._ready.set()
        beside = (self._keep_time, self.pulse.beat_on, *self.beside)
        tasks = [asyncio.create_task(go_on()) for go_on in beside]
        await run(self.reconciler, self._nudged, self._stopped, self.pace)
        for task in tasks:
            task.cancel()

    async def _keep_time(self) -> None:
        while True:
            self._beat_s = self.monotonic_s()
            await asyncio.sleep(BEAT_S)
