"""Parallel transfers with adaptive concurrency, each retried until a deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Final, TypeVar

from holdfast_worker.storage.base import StoreUnreachable
from holdfast_worker.storage.retry import retry_until

T = TypeVar("T")

MIN_TRANSFERS: Final = 1.0
INITIAL_READS_PER_CORE: Final = 4
"""Initial concurrent reads per core. Each touches new memory and competes for the cores: on
two cores, 32 were a fifth slower than 8. Concurrency grows from here while the processor is idle."""
MAX_CPU_SHARE: Final = 0.7
"""Share of one core that this process may use while more reads begin. Python runs on one core
at a time. A lower value leaves a slow link idle; a higher value begins reads that compete for the core."""
CPU_WINDOW_S: Final = 0.05
"""Time over which that share is measured. A lower value measures noise; a higher value notices
a busy core after the restore."""


class TransferPool:
    """Limits concurrent transfers: a failure halves the limit, a successful round adds one.

    Additive increase and multiplicative decrease, as in D.-M. Chiu, R. Jain, "Analysis of the increase and decrease
    algorithms for congestion avoidance in computer networks", Computer Networks and ISDN Systems 17 (1989).
    """

    def __init__(self, most: int, initial: int | None = None, *, spares_cpu: bool = False) -> None:
        """Allow `initial` transfers at first (None: `most`), and at most `most`.

        `spares_cpu`: more are allowed only while this process waits for the store.
        """
        self._max = most
        self._limit = float(most if initial is None else min(initial, most))
        self._busy = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._spares_cpu = spares_cpu
        self._is_cpu_bound = False
        self._measured = time.monotonic(), time.process_time()

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

        tasks, left = list[Future[T]](), iter(actions)
        with ThreadPoolExecutor(max(1, min(self._max, len(actions))), "holdfast-lane") as pool:
            running: set[Future[T]] = set()
            while True:
                # Not all at once: the pool would begin a thread for each, and a thread a connection.
                for action in islice(left, max(0, self.limit - len(running))):
                    tasks.append(pool.submit(one, action))
                    running.add(tasks[-1])
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                if any(task.exception() for task in done):
                    break
            is_over.set()
            with self._changed:
                self._changed.notify_all()
        for task in tasks:
            error = task.exception()
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
            width = self._limit + (0 if self._spares_cpu and self._uses_cpu() else 1 / self._limit)
        finally:
            self._release(width)
        return result

    def _uses_cpu(self) -> bool:
        """Whether the processor limits the transfers, so that more at once would only compete."""
        now_s, cpu_s = time.monotonic(), time.process_time()
        since_s, since_cpu_s = self._measured
        if now_s - since_s >= CPU_WINDOW_S:
            self._is_cpu_bound = cpu_s - since_cpu_s > MAX_CPU_SHARE * (now_s - since_s)
            self._measured = now_s, cpu_s
        return self._is_cpu_bound

    def _release(self, width: float) -> None:
        with self._changed:
            self._busy -= 1
            self._limit = min(max(width, MIN_TRANSFERS), float(self._max))
            self._changed.notify_all()


def read_pool(most: int) -> TransferPool:
    """A pool for reads, which use more CPU than writes: it starts with a limit per core."""
    initial = INITIAL_READS_PER_CORE * len(os.sched_getaffinity(0))
    return TransferPool(most, initial, spares_cpu=True)


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
