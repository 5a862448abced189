"""How far away and how wide the stand-in's line is: a latency, and token buckets for the bytes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

BURST_S: Final = 0.05
"""For how long an idle line may be used twice. Less: a late wake-up costs bandwidth. More: no limit is seen."""
CATCH_UP_S: Final = 0.25
"""The same within one body, of which no second is idle but for want of CPU: what was late may be made up for."""
QUANTUM_S: Final = 0.025
"""How long a connection waits at a time. Less: the waiting costs CPU. More: bodies come in jerks."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """What lies between a client and the stand-in; 0 for no limit."""

    latency_s: float = 0.0
    """Before each answer."""
    bytes_per_s: float = 0.0
    """Of each connection."""
    total_bytes_per_s: float = 0.0
    """Of all connections together, in each direction."""


S3_LIKE: Final = Link(latency_s=0.02, bytes_per_s=40e6)
"""One connection to Amazon's S3, roughly; with 16 of them, 640 MB/s."""


class Tokens:
    """A token bucket that says how long to wait."""

    def __init__(self, bytes_per_s: float, burst_s: float = BURST_S) -> None:
        self._bytes_per_s = bytes_per_s
        self._burst_s = burst_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Let the time until now be no merit."""
        self._free_at = max(self._free_at, time.monotonic())

    def wait_s(self, size_bytes: int) -> float:
        """How long a transfer of so many bytes has to wait."""
        if not self._bytes_per_s:
            return 0.0
        now = time.monotonic()
        with self._lock:
            self._free_at = max(self._free_at, now - self._burst_s) + size_bytes / self._bytes_per_s
            return self._free_at - now


class Line:
    """The link as it is now, and what all connections share of it."""

    def __init__(self) -> None:
        self.lay(Link())

    def lay(self, link: Link) -> None:
        """From now on the line is like this."""
        self.link = link
        self.incoming = Tokens(link.total_bytes_per_s)
        self.outgoing = Tokens(link.total_bytes_per_s)


class Pace:
    """One connection's share of the line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._link = line.link
        self._own = Tokens(self._link.bytes_per_s, CATCH_UP_S)

    def begin(self) -> None:
        """A body begins to move."""
        self._own.begin()

    @property
    def quantum_bytes(self) -> int:
        """How much is moved at a time; 0 for as much as there is."""
        link = self._line.link
        if link is not self._link:
            self._link, self._own = link, Tokens(link.bytes_per_s, CATCH_UP_S)
        rates = [rate for rate in (link.bytes_per_s, link.total_bytes_per_s) if rate]
        return min(max(int(min(rates) * QUANTUM_S), 4 << 10), 1 << 20) if rates else 0

    def incoming_s(self, size_bytes: int) -> float:
        """How long to wait after so many bytes have come."""
        return max(self._own.wait_s(size_bytes), self._line.incoming.wait_s(size_bytes))

    def outgoing_s(self, size_bytes: int) -> float:
        """How long to wait after so many bytes have gone."""
        return max(self._own.wait_s(size_bytes), self._line.outgoing.wait_s(size_bytes))
