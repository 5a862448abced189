"""The heart: the thread in which the reconciler beats, with an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, TypeVar

from holdfast import loop
from holdfast.errors import LauncherUnreachable
from holdfast.pulse import Pulse

T = TypeVar("T")


@dataclass
class Heart:
    """The thread in which the reconciler beats."""

    reconciler: loop.Reconciler
    pace: loop.Pace
    pulse: Pulse
    beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    """What else goes on in this thread until the end, and is cancelled then."""
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

    def ask(self, question: Coroutine[Any, Any, T], /) -> Awaitable[T]:
        """The answer to what a launcher is asked, in this thread: its connections belong to the event loop in it.

        Raises:
            LauncherUnreachable: the heart does not beat.
        """
        if not self.beats():
            question.close()
            raise LauncherUnreachable("the reconciler has stopped, and nobody asks launchers")
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(question, self._loop))

    def beats(self) -> bool:
        """Whether the reconciler runs; False before the start and after an end that nobody asked for."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """End after the steps under way."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self.nudge()
        assert self._thread is not None
        self._thread.join(timeout=30)

    async def _beat(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._nudged, self._stopped = asyncio.Event(), asyncio.Event()
        self._ready.set()
        tasks = [asyncio.create_task(go_on()) for go_on in (self.pulse.beat_on, *self.beside)]
        await loop.run(self.reconciler, self._nudged, self._stopped, self.pace)
        for task in tasks:
            task.cancel()
