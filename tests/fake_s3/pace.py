"""Latency and bandwidth of the fake S3, as a delay and token buckets."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

BURST_S: Final = 0.05
"""Idle time whose bandwidth is kept. A lower value loses bandwidth; a higher one hides the limit."""
CATCH_UP_S: Final = 0.25
"""`BURST_S` within one body, where only a lack of CPU causes idle time, which may be caught up."""
QUANTUM_S: Final = 0.025
"""Duration of one wait of a connection. A lower value costs CPU; a higher one causes bursts."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """Network properties between clients and the server; 0 for no limit."""

    latency_s: float = 0.0
    """Delay before each reply."""
    bytes_per_s: float = 0.0
    """Bandwidth of each connection."""
    total_bytes_per_s: float = 0.0
    """Bandwidth of all connections together, in each direction."""


S3_LIKE: Final = Link(latency_s=0.02, bytes_per_s=40e6)
"""Approximation of one connection to Amazon S3; 16 of them have 640 MB/s."""


class Tokens:
    """A token bucket that returns the time to wait."""

    def __init__(self, bytes_per_s: float, burst_s: float = BURST_S) -> None:
        self._bytes_per_s = bytes_per_s
        self._burst_s = burst_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Discard the tokens of the time until now."""
        self._free_at = max(self._free_at, time.monotonic())

    def wait_s(self, size_bytes: int) -> float:
        """Time that a transfer of `size_bytes` has to wait."""
        if not self._bytes_per_s:
            return 0.0
        now = time.monotonic()
        with self._lock:
            self._free_at = max(self._free_at, now - self._burst_s) + size_bytes / self._bytes_per_s
            return self._free_at - now


class SharedLink:
    """The current link, and the bandwidth that all connections share."""

    def __init__(self) -> None:
        self.set(Link())

    def set(self, link: Link) -> None:
        """Replace the properties of the link."""
        self.link = link
        self.incoming = Tokens(link.total_bytes_per_s)
        self.outgoing = Tokens(link.total_bytes_per_s)


class Pace:
    """Bandwidth limits of one connection."""

    def __init__(self, shared_link: SharedLink) -> None:
        self._shared_link = shared_link
        self._link = shared_link.link
        self._own = Tokens(self._link.bytes_per_s, CATCH_UP_S)

    def begin(self) -> None:
        """Start the transfer of a body."""
        self._own.begin()

    @property
    def quantum_bytes(self) -> int:
        """Bytes per transfer step; 0 for no limit."""
        link = self._shared_link.link
        if link is not self._link:
            self._link, self._own = link, Tokens(link.bytes_per_s, CATCH_UP_S)
        rates = [rate for rate in (link.bytes_per_s, link.total_bytes_per_s) if rate]
        return min(max(int(min(rates) * QUANTUM_S), 4 << 10), 1 << 20) if rates else 0

    def incoming_s(self, size_bytes: int) -> float:
        """Time to wait after receiving `size_bytes`."""
        return max(self._own.wait_s(size_bytes), self._shared_link.incoming.wait_s(size_bytes))

    def outgoing_s(self, size_bytes: int) -> float:
        """Time to wait after sending `size_bytes`."""
        return max(self._own.wait_s(size_bytes), self._shared_link.outgoing.wait_s(size_bytes))
