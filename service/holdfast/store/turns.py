"""Turns: one thread at a time, in the order in which they came."""

from __future__ import annotations

from collections import deque
from threading import Lock


class Turns:
    """A lock with a queue. A plain one goes to whoever is quickest: among busy threads, one that waits may never be."""

    def __init__(self) -> None:
        self._alone = Lock()
        self._is_taken = False
        self._waiting: deque[Lock] = deque()
        """One for each thread that waits, held until it is that thread's turn."""

    def take(self, timeout_s: float) -> bool:
        """Whether it was this thread's turn within that time; then it has to `pass_on`."""
        with self._alone:
            if not self._is_taken:
                self._is_taken = True
                return True
            mine = Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout_s):
            return True
        with self._alone:
            if mine not in self._waiting:
                return True  # It came at the last moment.
            self._waiting.remove(mine)
            return False

    def pass_on(self) -> None:
        """Let the next one have its turn."""
        with self._alone:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False
