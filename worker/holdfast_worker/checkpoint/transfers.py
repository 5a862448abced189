"""Parallel transfers with adaptive concurrency, each retried until a deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final, TypeVar

from holdfast_worker.storage.base import StoreUnreachable
from holdfast_worker.storage.retry import retry_until

T = TypeVar("T")

MIN_TRANSFERS: Final = 1.0
INITIAL_READS_PER_CORE: Final = 4
"""Initial concurrent reads per core. Each touches new memory and competes for the cores: on
two cores, 32 were a fifth slower than 8. Concurrency grows from here if more is faster."""


class TransferPool:
    """Limits concurrent transfers: a failure halves the limit, a successful round adds one.

    Additive increase and multiplicative decrease, as in D.-M. Chiu, R. Jain, "Analysis of the increase and decrease
    algorithms for congestion avoidance in computer networks", Computer Networks and ISDN Systems 17 (1989).
    """

    def __init__(self, most: int, initial: int | None = None) -> None:
        """Allow `initial` transfers at first (None: `most`), and at most `most`."""
        self._max = most
        self._limit = float(most if initial is None else min(initial, most))
        self._busy = 0
        self._is_closed = False
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """Transfers that may run now."""
        return int(self._limit)

    def run(self, actions: Sequence[Callable[[], T]], until_s: float) -> list[T]:
        """Run the actions and return their results in order.

        A permanent failure skips actions that have not begun.

        Raises:
            StoreError: the error of the first failed action in order; or the pool was closed.
        """
        is_over = threading.Event()

        def one(action: Callable[[], T]) -> T:
            return retry_until(lambda: self._run_one(action, is_over), until_s)

        with ThreadPoolExecutor(max(1, min(self._max, len(actions))), "holdfast-lane") as pool:
            tasks = [pool.submit(one, action) for action in actions]
            wait(tasks, return_when=FIRST_EXCEPTION)
            is_over.set()
            with self._changed:
                self._changed.notify_all()
            pool.shutdown(cancel_futures=True)
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if error and not isinstance(error, TransferCancelled):
                raise error
        if self._is_closed:
            raise StoreUnreachable("the transfer was cancelled because the run has ended")
        return [task.result() for task in tasks]

    def close(self) -> None:
        """Prevent new transfers and retries. A process cannot exit before its transfers end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run_one(self, action: Callable[[], T], is_over: threading.Event) -> T:
        with self._changed:
            self._changed.wait_for(
                lambda: self._busy < self.limit or is_over.is_set() or self._is_closed
            )
            if is_over.is_set() or self._is_closed:
                raise TransferCancelled
            self._busy += 1
        width = self._limit / 2
        try:
            result = action()
            width = self._limit + 1 / self._limit
        finally:
            self._release(width)
        return result

    def _release(self, width: float) -> None:
        with self._changed:
            self._busy -= 1
            self._limit = min(max(width, MIN_TRANSFERS), float(self._max))
            self._changed.notify_all()


def read_pool(most: int) -> TransferPool:
    """A pool for reads, which use more CPU than writes: it starts with a limit per core."""
    return TransferPool(most, INITIAL_READS_PER_CORE * len(os.sched_getaffinity(0)))


class TransferCancelled(Exception):
    """Another transfer of the same round failed, or the pool was closed."""


class RateLimit:
    """Limits bytes per second until it is lifted."""

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = time.monotonic()
        self._guard = threading.Lock()
        self._is_lifted = threading.Event()

    def spread_s(self, size: int) -> float:
        """Duration over which `size` bytes are spread; 0 without a limit."""
        return size / self._bytes_per_s if self._bytes_per_s else 0.0

    def lift(self) -> None:
        """Remove the limit."""
        self._is_lifted.set()

    def wait(self, size: int) -> None:
        """Wait until `size` more bytes may be sent."""
        if self._bytes_per_s is None:
            return
        with self._guard:
            turn_s = max(self._free_s, time.monotonic())
            self._free_s = turn_s + size / self._bytes_per_s
        self._is_lifted.wait(max(0.0, turn_s - time.monotonic()))
