"""Lanes: many transfers at once, fewer when the store asks for it, each tried again until it is done or time is up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final, TypeVar

from holdfast_worker.storage.base import Unreachable
from holdfast_worker.storage.retry import retry_until

T = TypeVar("T")

FEWEST: Final = 1.0
FROM_START_PER_CORE: Final = 4
"""Transfers that are read at once before it is known that more are faster. Each costs memory that is touched for the first time,
and the cores take turns on them: on two cores 32 were a fifth slower than 8."""


class TransferPool:
    """How many transfers may be under way. Halved by each that fails, widened by one for each round that succeeds.

    Additive increase and multiplicative decrease, as in D.-M. Chiu, R. Jain, "Analysis of the increase and decrease
    algorithms for congestion avoidance in computer networks", Computer Networks and ISDN Systems 17 (1989).
    """

    def __init__(self, most: int, begin: int | None = None) -> None:
        """As many as `begin` at first; `most` if None."""
        self._most = most
        self._open = float(most if begin is None else min(begin, most))
        self._busy = 0
        self._is_closed = False
        self._changed = threading.Condition()

    @property
    def open(self) -> int:
        """Transfers that may be under way now."""
        return int(self._open)

    def run(self, actions: Sequence[Callable[[], T]], until_s: float) -> list[T]:
        """What the actions return, in their order. One that fails for good keeps those from beginning that have not.

        Raises:
            StoreError: what the first in their order said that failed; or the lanes were closed.
        """
        is_over = threading.Event()

        def one(action: Callable[[], T]) -> T:
            return retry_until(lambda: self._in_a_lane(action, is_over), until_s)

        with ThreadPoolExecutor(max(1, min(self._most, len(actions))), "holdfast-lane") as pool:
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
            raise Unreachable("it is given up, as the run is over")
        return [task.result() for task in tasks]

    def close(self) -> None:
        """Let no transfer begin any more, nor be tried again. A process cannot end before its transfers have."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _in_a_lane(self, action: Callable[[], T], is_over: threading.Event) -> T:
        with self._changed:
            self._changed.wait_for(
                lambda: self._busy < self.open or is_over.is_set() or self._is_closed
            )
            if is_over.is_set() or self._is_closed:
                raise TransferCancelled
            self._busy += 1
        width = self._open / 2
        try:
            result = action()
            width = self._open + 1 / self._open
        finally:
            self._leave(width)
        return result

    def _leave(self, width: float) -> None:
        with self._changed:
            self._busy -= 1
            self._open = min(max(width, FEWEST), float(self._most))
            self._changed.notify_all()


def readers(most: int) -> TransferPool:
    """Lanes for reading, which costs the processor more than writing does: as many as the cores keep up with, until they do."""
    return TransferPool(most, FROM_START_PER_CORE * len(os.sched_getaffinity(0)))


class TransferCancelled(Exception):
    """Another transfer of the same round has failed, or all are over; nobody waits for this one."""


class RateLimit:
    """So many bytes a second, and no more; or all that goes, from the moment on at which somebody is in a hurry."""

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = time.monotonic()
        self._guard = threading.Lock()
        self._hurry = threading.Event()

    def spread_s(self, size: int) -> float:
        """Over how long so many bytes are spread; 0 if nothing is held back."""
        return size / self._bytes_per_s if self._bytes_per_s else 0.0

    def hurry(self) -> None:
        """Hold nothing back any more."""
        self._hurry.set()

    def wait(self, size: int) -> None:
        """Return when it is the turn of that many bytes."""
        if self._bytes_per_s is None:
            return
        with self._guard:
            turn_s = max(self._free_s, time.monotonic())
            self._free_s = turn_s + size / self._bytes_per_s
        self._hurry.wait(max(0.0, turn_s - time.monotonic()))
