"""The controller thread and its event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, Final, TypeVar

from holdfast.controller.launcher_health import LauncherHealthMonitor
from holdfast.controller.limit_enforcement import run_limit_enforcement
from holdfast.controller.orphan_cleanup import run_sweeps
from holdfast.controller.reconciler import Lease, PollIntervals, Reconciler
from holdfast.errors import LauncherUnreachable, StoreUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

HEARTBEAT_S: Final = 1.0
STALLED_S: Final = 15.0
"""Seconds without a heartbeat after which the thread counts as stuck. A lower value
misjudges a busy machine; a higher value detects a stuck thread later."""


@dataclass
class ControllerThread:
    """The thread that runs the reconciler and the background tasks."""

    reconciler: Reconciler
    intervals: PollIntervals
    health_monitor: LauncherHealthMonitor
    background_tasks: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    """Other tasks in this thread, cancelled at its end."""
    monotonic_s: Callable[[], float] = time.monotonic
    _heartbeat_s: float = -STALLED_S
    """Time of the last heartbeat of the event loop."""
    _ready: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def start(self) -> None:
        """Start the thread; return once its event loop runs."""
        self._thread = Thread(
            target=lambda: asyncio.run(self._run()), name="reconciler", daemon=True
        )
        self._thread.start()
        self._ready.wait()

    def nudge(self) -> None:
        """Wake the reconciler."""
        if self._ready.is_set():
            self._loop.call_soon_threadsafe(self._nudged.set)

    def call(self, request: Coroutine[Any, Any, T], /) -> Awaitable[T]:
        """Run a launcher call in this thread, whose event loop owns the launcher's connections.

        Raises:
            LauncherUnreachable: the controller thread is not running.
        """
        if not self.is_alive():
            request.close()
            raise LauncherUnreachable(
                "the controller thread has stopped or is stuck; restart the service"
            )
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(request, self._loop))

    def is_alive(self) -> bool:
        """Whether the reconciler runs: its thread is alive, and no call blocks its event loop."""
        is_alive = self._thread is not None and self._thread.is_alive()
        return is_alive and self.monotonic_s() - self._heartbeat_s < STALLED_S

    def stop(self) -> None:
        """Stop after the steps under way."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self.nudge()
        assert self._thread is not None
        self._thread.join(timeout=30)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._nudged, self._stopped = asyncio.Event(), asyncio.Event()
        self._heartbeat_s = self.monotonic_s()
        self._ready.set()
        companions = (self._record_heartbeats, self.health_monitor.run, *self.background_tasks)
        tasks = [asyncio.create_task(task()) for task in companions]
        await run(self.reconciler, self._nudged, self._stopped, self.intervals)
        for task in tasks:
            task.cancel()

    async def _record_heartbeats(self) -> None:
        while True:
            self._heartbeat_s = self.monotonic_s()
            await asyncio.sleep(HEARTBEAT_S)


async def run(
    reconciler: Reconciler, nudged: asyncio.Event, stopped: asyncio.Event, intervals: PollIntervals
) -> None:
    """Process due jobs until `stopped`, at every poll interval and after each nudge.

    A slow launcher delays neither the jobs of other launchers nor, up to a whole batch, its own other jobs. An
    unexpected error with one job stops no other.
    """
    under_way: dict[Lease, asyncio.Task[None]] = {}

    def forget(lease: Lease, task: asyncio.Task[None]) -> None:
        del under_way[lease]
        if not task.cancelled() and (error := task.exception()):
            log.error(
                "%s: unexpected error; the job is processed again when its lease expires",
                lease.job_id,
                exc_info=error,
            )

    companions = (
        run_sweeps(reconciler.orphan_cleaner, intervals.sweep_every_s),
        run_limit_enforcement(reconciler.limit_enforcer),
    )
    tasks = [asyncio.create_task(work) for work in companions]
    while not stopped.is_set():
        nudged.clear()
        claimed: list[Lease] = []
        try:
            # A step may outlast its lease. A job under way is not claimed again; a nudge for it waits.
            claimed = reconciler.claim(under_way)
        except StoreUnavailable as error:
            log.error("%s", error.detail)  # noqa: TRY400 - the message is complete
        for lease in claimed:
            under_way[lease] = task = asyncio.create_task(reconciler.process(lease))
            task.add_done_callback(functools.partial(forget, lease))
        with suppress(TimeoutError):
            await asyncio.wait_for(nudged.wait(), timeout=intervals.poll_every_s / 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, *under_way.values(), return_exceptions=True)
